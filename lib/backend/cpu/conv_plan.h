// Convolutions by oneDNN, prepared once per shape: primitives, their arguments and their scratch memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <dnnl.hpp>
#include <initializer_list>
#include <memory>
#include <unordered_map>
#include <vector>

#include "lib/backend/backend.h"

namespace duet::cpu {

/// Whether oneDNN uses instructions for bf16: the machine has them, and no variable forbids them.
bool onednn_multiplies_bf16();

enum class ConvPass { forward, backward_data, backward_weights };

/// The key of a prepared convolution: all that it depends on. `batch` is the number of rows of one block.
struct ConvKey {
  ConvPass pass;
  std::int64_t batch, in_channels, height, width, out_channels;
  Window2d window;
  Layout x_layout, y_layout;
  std::int64_t groups;
  bool bias;
  bool bf16 = false;  // images that are read are bf16, those written are floats, and a pixel's channels are adjacent

  bool operator==(const ConvKey&) const = default;
};

/// One oneDNN primitive with arguments whose addresses are set at each call. Used by one thread at a time.
class PreparedCall {
 public:
  struct Argument {
    int name;  // DNNL_ARG_...
    dnnl::memory::desc desc;
  };
  /// The last argument is left out if its desc is empty.
  PreparedCall(const dnnl::primitive& primitive, const dnnl::memory::desc& scratchpad,
               std::initializer_list<Argument> arguments);
  /// Runs with one address per argument, in the order of the constructor; the address of one that is left out is not
  /// read.
  void run(const dnnl::stream& stream, std::initializer_list<const void*> addresses) const;

 private:
  dnnl::primitive primitive_;
  std::size_t given_ = 0;               // arguments with addresses
  std::vector<dnnl::memory> memories_;  // arguments, then the scratchpad if there is one
  std::vector<dnnl_exec_arg_t> arguments_;
};

/// A convolution pass over one block. Its weights (or their gradient) have oneDNN's preferred format inside.
struct ConvPlan {
  dnnl::memory::desc weights;  // the preferred format
  /// forward: x, w, y, b; backward_data: dy, w, dx; backward_weights: x, dy, dw, db. The bias may be left out.
  std::unique_ptr<PreparedCall> convolve;
  std::unique_ptr<PreparedCall> reorder;  // plain weights to preferred, or for backward_weights back
  /// Not 0: the preferred format is (K / block, C / block, R, S) blocks, of an input's outputs or the other way round.
  int block = 0;
  bool outputs_last = false;
  bool bf16 = false;  // as in the key

  /// Floats of the weights in the preferred format.
  std::int64_t weight_floats() const { return static_cast<std::int64_t>(weights.get_size() / sizeof(float)); }
};

/// The plans of one worker thread of one device.
class ConvPlans {
 public:
  ConvPlans();
  /// The plan for `key`, made when it is asked for the first time.
  ConvPlan& plan(const ConvKey& key);
  const dnnl::stream& stream() const { return stream_; }

 private:
  struct Hash {
    std::size_t operator()(const ConvKey& key) const;
  };
  ConvPlan make(const ConvKey& key) const;

  dnnl::engine engine_;
  dnnl::stream stream_;
  std::unordered_map<ConvKey, ConvPlan, Hash> plans_;
};

}  // namespace duet::cpu
