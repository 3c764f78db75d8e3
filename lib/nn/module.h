// Modules: descriptions of networks. Their values live in a ParameterStore, found through a Context.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/nn/context.h"
#include "lib/nn/value.h"
#include "lib/random.h"

namespace duet::nn {

/// A network or a part of one. It registers parameters, buffers and child modules when it is constructed, in the order
/// in which PyTorch would. Children are members or owned by a container; a child is registered in one parent only.
///
/// forward is const and reads all values from the context, so one module may run on several threads at once, each with
/// a context of its own. Everything else is for one thread at a time.
class Module {
 public:
  Module() = default;
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  virtual Variable forward(Context& context, const Variable& x) const;
  /// For modules that take or give more than one tensor; calls the above unless overridden.
  virtual Value forward(Context& context, const Value& input) const;

  /// Runs forward with the model's own values.
  Variable operator()(const Variable& x);
  Variable operator()(const Tensor& x) { return (*this)(Variable(x)); }
  Value operator()(const Value& input);

  /// The values of the whole model that this module belongs to. When they do not exist yet they are made on cpu:0 and
  /// initialised from seed 0.
  ParameterStore& parameters() { return *context().store; }
  /// The context of the whole model.
  Context& context();
  /// Draws all initial values anew, in PyTorch's order (semantics of torch.nn.init for each layer).
  void initialise(Mt19937& generator);
  void initialise(std::uint64_t seed);

  /// Moves all values of the whole model to `device`, as they are, and drops the gradients. Before an optimizer or a
  /// wrapper is made: those keep hold of the values. Throws UsageError for a part of a model.
  void to(Device device);

  void train(bool on = true) { context().training = on; }
  void eval() { train(false); }
  bool training() { return context().training; }
  void zero_grad() { parameters().zero_grad(); }

  /// Views of this module's own parameters and buffers, named from here, in PyTorch's order.
  std::vector<NamedTensor> state_dict();
  /// Copies values in. Throws DataError that names the first missing, unknown or differently shaped tensor.
  void load_state_dict(const std::vector<NamedTensor>& state);

  /// PyTorch's text: "Linear(in_features=5, out_features=2, bias=True)".
  std::string str() const;

  /// Numbers of this module's slots, buffers and layers (dropout's key) in the tree of its model.
  struct Range {
    int first_slot = 0, slots = 0, first_buffer = 0, buffers = 0;
  };
  const Range& range() const { return is_wrapper() ? children_.front().module->range() : range_; }

 protected:
  using Fill = std::function<void(std::span<float>, Mt19937&)>;
  /// Returns the number to be given to parameter(). `fill` draws the initial values.
  int register_parameter(std::string name, const Shape& shape, Fill fill);
  int register_buffer(std::string name, const Shape& shape, float value);
  void register_module(std::string name, Module& child);
  /// For a wrapper such as DataParallel: `child` runs inside this module, but keeps its values and stays a model of its
  /// own, unless this wrapper becomes part of another module.
  void wrap_module(std::string name, Module& child);

  const Variable& parameter(const Context& context, int number) const {
    return context.parameter(range_.first_slot + number);
  }
  const Tensor& buffer(const Context& context, int number) const {
    return context.buffer(range_.first_buffer + number);
  }
  /// Number of this module in its model, for dropout's key.
  std::uint32_t layer() const { return layer_; }

  /// "Linear", and "in_features=5, ...", for str().
  virtual std::string type_name() const = 0;
  virtual std::string details() const { return {}; }

 private:
  struct OwnParameter {
    std::string name;
    Shape shape;
    Fill fill;
  };
  struct OwnBuffer {
    std::string name;
    Shape shape;
    float value;
  };
  struct Child {
    std::string name;
    Module* module;
    bool wrapped = false;
  };
  struct Numbering {
    int slots = 0, buffers = 0;
    std::uint32_t layers = 0;
  };
  bool is_wrapper() const { return !children_.empty() && children_.front().wrapped; }
  void set_parent(Module& parent);
  void number(Numbering& next);
  void make_values();
  void collect(const std::string& prefix, std::vector<Slot>& slots, std::vector<NamedTensor>& buffers) const;
  void fill_values(ParameterStore& store, Mt19937& generator) const;
  void append_state(const std::string& prefix, const Context& own, std::vector<NamedTensor>& state) const;
  void append_text(std::string& text, int indent) const;

  std::vector<OwnParameter> parameters_;
  std::vector<OwnBuffer> buffers_;
  std::vector<Child> children_;
  Module* parent_ = nullptr;
  Range range_;
  std::uint32_t layer_ = 0;
  std::unique_ptr<ParameterStore> store_;  // of a root only
  Context context_;
};

}  // namespace duet::nn
