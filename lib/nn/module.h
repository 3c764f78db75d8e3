// Modules: descriptions of networks. Their values are FlatParameters, found through a Context.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/function_ref.h"
#include "lib/error.h"
#include "lib/nn/context.h"
#include "lib/nn/flat_parameters.h"
#include "lib/nn/init.h"
#include "lib/nn/value.h"
#include "lib/random.h"
#include "lib/tensor.h"

namespace duet::nn {

// A forward that is not const would hide Module's and never run: here it is an error of the compiler, whose note shows
// the comment. Users' classes do not see these functions.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Woverloaded-virtual"
// clang-format off
class ForwardMustBeConst {
 public:
  virtual ~ForwardMustBeConst() = default;
  virtual Variable forward(Context&, const Variable&) = delete;  // write: Variable forward(Context&, const Variable&) const override
  virtual Value forward(Context&, const Value&) = delete;  // write: Value forward(Context&, const Value&) const override
};
// clang-format on

/// A network or a part of one. It registers parameters, buffers and child modules when it is constructed, in the order
/// in which PyTorch would; after the values were made that is a UsageError. Children are members or owned by a
/// container; a child is registered in one parent only, and lives as long as it.
///
/// forward is const and reads all values from the context, so one module may run on several threads at once, each with
/// a context of its own. Everything else is for one thread at a time.
class Module : public ForwardMustBeConst {
 public:
  Module() = default;
  ~Module() override;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  virtual Variable forward(Context& context, const Variable& x) const;
  /// For modules that take or give more than one tensor; calls the above unless overridden.
  virtual Value forward(Context& context, const Value& input) const;
  Variable forward(Context& context, const Tensor& x) const { return forward(context, Variable(x)); }

  /// Runs forward with the model's own values.
  Variable operator()(const Variable& x);
  Variable operator()(const Tensor& x) { return (*this)(Variable(x)); }
  Value operator()(const Value& input);
  // A replica runs forward with values of its own, which only the context has.
  Variable operator()(const Variable&) const = delete;  // inside forward write: layer.forward(context, x)
  Variable operator()(const Tensor&) const = delete;    // inside forward write: layer.forward(context, x)
  Value operator()(const Value&) const = delete;        // inside forward write: layer.forward(context, x)

  /// The values of the whole model that this module belongs to. When they do not exist yet they are made on cpu:0 and
  /// initialised from seed 0, save that parts which had values before they were registered bring them along.
  FlatParameters& parameters() { return *context().store; }
  /// The context of the whole model.
  Context& context();
  /// Whether it and its parts add up over rows as Note [Sums over samples] in lib/blocks.h says: only then has
  /// a batch that is divided over any number of devices the same bits.
  bool sums_by_blocks() const;
  /// Whether holds(module) is true of this module and all of its parts.
  bool all_modules(FunctionRef<bool(const Module&)> holds) const;
  /// Elements of all parameters of this module and its parts; makes no values.
  std::int64_t parameter_count() const;
  /// Draws all initial values, in PyTorch's order (semantics of torch.nn.init for each layer). Values that exist are
  /// overwritten in place, so optimizers and wrappers stay valid (momentum stays as it is), and gradients are dropped.
  /// Throws UsageError for a part of a model.
  void initialise(Mt19937& generator);
  void initialise(std::uint64_t seed);

  /// Moves all values of the whole model to `device`, as they are, and drops the gradients. Throws UsageError for a
  /// part of a model, and while an optimizer, running replicas or hooks on gradients hold the values where they are.
  void to(Device device);

  /// Switches dropout and batch norm of this module and its parts, as PyTorch's: `model.train();
  /// model.backbone.eval();` freezes the backbone's running statistics.
  void train(bool on = true);
  void eval() { train(false); }
  /// Whether this module itself is in training; a wrapper's mode is that of what it wraps.
  bool training() const { return is_wrapper() ? child(children_.front()).training() : training_; }
  /// Marks the gradients of this module and its parts empty.
  void zero_grad();

  /// Views of this module's own parameters and buffers, named from here, in PyTorch's order.
  std::vector<NamedTensor> state_dict();
  /// Copies values in, as copy_by_name() does.
  void load_state_dict(const std::vector<NamedTensor>& state);
  /// Copies values in as load_state_dict() does, but leaves out what does not fit: see copy_what_fits().
  [[nodiscard]] LeftOut load_what_fits(const std::vector<NamedTensor>& state) {
    return copy_what_fits(state, state_dict());
  }

  /// PyTorch's text: "Linear(in_features=5, out_features=2, bias=True)".
  std::string str() const;
  /// Its place in the model and its type, for messages: "features.3.conv1 (Conv2d)", "ResNet".
  std::string label() const;

  /// Runs `task`, a part of this module's forward, and returns its result. An Error gets this module's place in the
  /// model in front of its text, "features.3.conv1 (Conv2d): ", unless it has that of a module inside already.
  template <class Task, class... Arguments>
  auto name_errors(Task&& task, const Arguments&... arguments) const {
    try {
      return task(arguments...);
    } catch (const Error& error) {
      rethrow_named(error);
    }
  }

  /// Numbers of this module's slots, buffers and layers (dropout's key) in the tree of its model.
  struct Range {
    int first_slot = 0, slots = 0, first_buffer = 0, buffers = 0;
  };
  const Range& range() const { return is_wrapper() ? child(children_.front()).range() : range_; }

 protected:
  using Fill = init::Fill;
  /// Returns the number to be given to parameter(). `fill` draws the initial values.
  int register_parameter(std::string name, const Shape& shape, Fill fill);
  /// `initial`: on cpu:0, kept.
  int register_buffer(std::string name, const Tensor& initial);
  void register_module(std::string name, Module& child);
  /// Gives the new initial values of one of `layer`'s own parameters, or an empty Fill: it keeps those that it has.
  using Redraw = std::function<Fill(const Module& layer, const std::string& parameter, const Shape& shape)>;
  /// For a network whose constructor in PyTorch draws over what its layers have drawn: after all its parts have drawn
  /// their initial values, `redraw` is called for each parameter of them, in the order of PyTorch's modules(). Parts
  /// that had values before they were registered keep these.
  void draw_over(Redraw redraw) { redraw_ = std::move(redraw); }
  /// Registers `wrapper`, which wraps the child `name`, in its place: `model.features = DataParallel(model.features)`.
  void wrap_child(const std::string& name, Module& wrapper);
  /// For a wrapper such as DataParallel: `child` runs inside this module, but keeps its values and stays a model of its
  /// own, unless this wrapper becomes part of another module. A wrapper registers nothing else.
  void wrap_module(std::string name, Module& child);

  /// Throw UsageError that names this module unless the context holds its values.
  const Variable& parameter(const Context& context, int number) const {
    if (static_cast<std::size_t>(number) >= parameters_.size() ||
        !context.has_slot(model_id_, range_.first_slot + number)) [[unlikely]]
      refuse(context, "parameters", parameters_.size(), number);
    return context.parameter(range_.first_slot + number);
  }
  const Tensor& buffer(const Context& context, int number) const {
    if (static_cast<std::size_t>(number) >= buffers_.size() ||
        !context.has_buffer(model_id_, range_.first_buffer + number)) [[unlikely]]
      refuse(context, "buffers", buffers_.size(), number);
    return context.buffer(range_.first_buffer + number);
  }
  /// Number of this module in its model, for dropout's key.
  std::uint32_t layer(const Context& context) const {
    if (!context.is_of(model_id_)) [[unlikely]]
      refuse(context, "layers", 1, 0);
    return layer_;
  }

  /// "Linear", the name of the class, and "in_features=5, ...", for str().
  virtual std::string type_name() const;
  virtual std::string details() const { return {}; }
  /// False for a module that computes by other means than duet's operators.
  virtual bool own_sums_by_blocks() const { return true; }
  /// Whether str() shows a run of children with the same text once.
  virtual bool merges_equal_children() const { return false; }

 private:
  struct OwnParameter {
    std::string name;
    Shape shape;
    Fill fill;
  };
  struct Child {
    std::string name;
    Module* module;  // null: it was destroyed
    bool wrapped = false;
    bool linked = false;  // this is its parent_
  };
  struct Numbering {
    std::uint64_t model_id;
    int slots = 0, buffers = 0;
    std::uint32_t layers = 0;
  };
  template <class T>
  T run(const T& input);
  [[noreturn]] void refuse(const Context& context, const char* what, std::size_t own, int number) const;
  bool is_wrapper() const { return !children_.empty() && children_.front().wrapped; }
  /// The module that a wrapper wraps, or this one.
  Module& innermost() { return is_wrapper() ? child(children_.front()).innermost() : *this; }
  const Module& root() const { return parent_ ? parent_->root() : *this; }
  Module& child(const Child& of) const;
  void require_can_register(const char* kind, const std::string& name) const;
  void require_not_held(const std::string& purpose) const;
  void set_parent(Module& parent);
  void forget(const Module& child);
  void set_training(bool on);
  void number(Numbering& next);
  void make_values();
  void draw_values(Mt19937& generator, bool adopt);
  void collect(const std::string& prefix, std::vector<Slot>& slots, std::vector<NamedTensor>& buffers) const;
  void fill_values(FlatParameters& store, Mt19937& generator, bool adopt);
  void adopt_values(FlatParameters& store) const;
  void draw(FlatParameters& store, std::size_t parameter, const Fill& fill, Mt19937& generator) const;
  void draw_over(FlatParameters& store, Mt19937& generator, const Redraw& redraw) const;
  void append_state(const std::string& prefix, const Context& own, std::vector<NamedTensor>& state) const;
  void append_text(std::string& text, int indent) const;
  [[noreturn]] void rethrow_named(const Error& error) const;
  std::string path() const;

  std::vector<OwnParameter> parameters_;
  std::vector<NamedTensor> buffers_;  // their initial values
  std::vector<Child> children_;
  Redraw redraw_;
  bool training_ = true;
  Module* parent_ = nullptr;
  std::uint64_t model_id_ = 0;  // that of the model's values; 0: not numbered
  Range range_;
  std::uint32_t layer_ = 0;
  std::unique_ptr<FlatParameters> store_;  // for a root; for a part only until the model's values are made
  bool adopted_ = false;                   // the model has taken this part's values
  Context context_;
};
#pragma GCC diagnostic pop

}  // namespace duet::nn
