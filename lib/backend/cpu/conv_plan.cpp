#include "lib/backend/cpu/conv_plan.h"

#include <utility>

#include "lib/error.h"

extern "C" void omp_set_num_threads(int threads);

namespace duet::cpu {
namespace {

/// oneDNN's own threads stay at one: a device's threads share out its blocks. OpenMP keeps the number per thread, and
/// oneDNN fixes it, and with it the order of sums, when a primitive is made.
void use_one_openmp_thread() {
  thread_local const bool done = (omp_set_num_threads(1), true);
  static_cast<void>(done);
}

using Desc = dnnl::memory::desc;
using Tag = dnnl::memory::format_tag;
constexpr auto kF32 = dnnl::memory::data_type::f32;

// One source for oneDNN 2.6 (Debian 12) and 3.x: what differs in their interfaces is in these functions.

/// Asks for scratch memory as an argument: the default kind belongs to the thread that made the primitive.
dnnl::primitive_attr user_scratchpad() {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attr;
}

/// Descriptor of a forward primitive; the arguments stand in the same order in both versions.
template <class Primitive, class... Args>
typename Primitive::primitive_desc describe_forward(const dnnl::engine& engine, Args&&... args) {
#if DNNL_VERSION_MAJOR >= 3
  return typename Primitive::primitive_desc(engine, std::forward<Args>(args)..., user_scratchpad());
#else
  return typename Primitive::primitive_desc(typename Primitive::desc(std::forward<Args>(args)...), user_scratchpad(),
                                            engine);
#endif
}

/// Descriptor of a backward primitive; `hint` describes its forward.
template <class Primitive, class Hint, class... Args>
typename Primitive::primitive_desc describe_backward(const dnnl::engine& engine, const Hint& hint, Args&&... args) {
#if DNNL_VERSION_MAJOR >= 3
  return typename Primitive::primitive_desc(engine, std::forward<Args>(args)..., hint, user_scratchpad());
#else
  return typename Primitive::primitive_desc(typename Primitive::desc(std::forward<Args>(args)...), user_scratchpad(),
                                            engine, hint);
#endif
}

/// Runs `call`; what oneDNN throws becomes an Error that names the operator.
template <class Call>
auto with_onednn_errors(const char* op, Call&& call) {
  try {
    return call();
  } catch (const dnnl::error& failure) {
    throw Error(concat(op, ": oneDNN: ", failure.what(), " (status ", static_cast<int>(failure.status), ")"));
  }
}

Tag tag_of(Layout layout) {
  switch (layout) {
    case Layout::blocked8: return Tag::nChw8c;
    case Layout::blocked16: return Tag::nChw16c;
    case Layout::plain: break;
  }
  return Tag::nchw;
}

dnnl::memory::dims weight_dims(const ConvKey& key) {
  const std::int64_t in = key.in_channels / key.groups, h = key.window.kernel_h, w = key.window.kernel_w;
  if (key.groups == 1) return {key.out_channels, in, h, w};
  return {key.groups, key.out_channels / key.groups, in, h, w};
}

/// Shapes of one convolution as oneDNN's descriptors: x, y and w as they are read, and as they are written.
struct Descs {
  explicit Descs(const ConvKey& key)
      : read_type(key.bf16 ? dnnl::memory::data_type::bf16 : kF32),
        x_dims{key.batch, key.in_channels, key.height, key.width},
        y_dims{key.batch, key.out_channels, key.window.out_h(key.height), key.window.out_w(key.width)},
        w_dims(weight_dims(key)),
        x(x_dims, read_type, key.bf16 ? Tag::nhwc : tag_of(key.x_layout)),
        y(y_dims, read_type, key.bf16 ? Tag::nhwc : tag_of(key.y_layout)),
        x_written(x_dims, kF32, key.bf16 ? Tag::nhwc : tag_of(key.x_layout)),
        y_written(y_dims, kF32, key.bf16 ? Tag::nhwc : tag_of(key.y_layout)),
        w_any(w_dims, read_type, Tag::any),
        w_written(w_dims, kF32, Tag::any),
        w_plain(w_dims, kF32, key.groups == 1 ? Tag::oihw : Tag::goihw),
        b(key.bias ? Desc({key.out_channels}, kF32, Tag::x) : Desc()),
        strides{key.window.stride_h, key.window.stride_w},
        padding{key.window.pad_h, key.window.pad_w} {}

  dnnl::memory::data_type read_type;
  dnnl::memory::dims x_dims, y_dims, w_dims;
  Desc x, y, x_written, y_written;
  Desc w_any, w_written, w_plain, b;
  dnnl::memory::dims strides, padding;
};

using Arguments = std::initializer_list<PreparedCall::Argument>;

template <class Primitive>
std::unique_ptr<PreparedCall> prepare(const typename Primitive::primitive_desc& desc, Arguments arguments) {
  return std::make_unique<PreparedCall>(Primitive(desc), desc.scratchpad_desc(), arguments);
}

std::unique_ptr<PreparedCall> reorder(const dnnl::engine& engine, const Desc& from, const Desc& to) {
  return prepare<dnnl::reorder>({engine, from, engine, to, user_scratchpad()},
                                {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
}

/// Finds whether the preferred format is one of whole blocks of inputs and outputs.
void find_block(const Descs& d, ConvPlan& plan) {
  struct Format {
    Tag tag;
    int block;
    bool outputs_last;
  };
  for (const auto& [tag, block, outputs_last] : {Format{Tag::OIhw16i16o, 16, true}, Format{Tag::OIhw16o16i, 16, false},
                                                 Format{Tag::OIhw8i8o, 8, true}, Format{Tag::OIhw8o8i, 8, false}}) {
    if (d.w_dims.size() != 4 || d.w_dims[0] % block != 0 || d.w_dims[1] % block != 0) continue;
    if (plan.weights != Desc(d.w_dims, kF32, tag)) continue;
    plan.block = block;
    plan.outputs_last = outputs_last;
  }
}

constexpr auto kDirect = dnnl::algorithm::convolution_direct;

}  // namespace

bool onednn_multiplies_bf16() {
  constexpr auto kBf16 = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);  // a set that contains all below it
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & kBf16) == kBf16;
}

PreparedCall::PreparedCall(const dnnl::primitive& primitive, const Desc& scratchpad,
                           std::initializer_list<Argument> arguments)
    : primitive_(primitive) {
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  memories_.reserve(arguments.size() + 1);
  for (const Argument& argument : arguments) {
    if (argument.desc.get_size() == 0) continue;
    memories_.emplace_back(argument.desc, engine, nullptr);
    arguments_.push_back({argument.name, memories_.back().get()});
  }
  given_ = memories_.size();
  if (scratchpad.get_size() > 0) {
    memories_.emplace_back(scratchpad, engine);
    arguments_.push_back({DNNL_ARG_SCRATCHPAD, memories_.back().get()});
  }
}

void PreparedCall::run(const dnnl::stream& stream, std::initializer_list<const void*> addresses) const {
  for (std::size_t i = 0; i < given_; ++i) memories_[i].set_data_handle(const_cast<void*>(addresses.begin()[i]));
  // The C call: the C++ one builds a map of its arguments each time.
  const dnnl_status_t status =
      dnnl_primitive_execute(primitive_.get(), stream.get(), static_cast<int>(arguments_.size()), arguments_.data());
  require(status == dnnl_success, "oneDNN failed with status ", static_cast<int>(status));
}

ConvPlans::ConvPlans() : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {}

std::size_t ConvPlans::Hash::operator()(const ConvKey& key) const {
  std::size_t hash = static_cast<std::size_t>(key.pass);
  for (const std::int64_t part : {key.batch, key.in_channels, key.height, key.width, key.out_channels,
                                  key.window.kernel_h, key.window.stride_h, key.window.pad_h, key.groups})
    hash = hash * 1000003 + static_cast<std::size_t>(part);
  return hash;
}

ConvPlan& ConvPlans::plan(const ConvKey& key) {
  use_one_openmp_thread();
  const auto found = plans_.find(key);
  if (found != plans_.end()) return found->second;
  return plans_.emplace(key, with_onednn_errors("conv2d", [&] { return make(key); })).first->second;
}

ConvPlan ConvPlans::make(const ConvKey& key) const {
  const Descs d(key);
  const auto forward =
      describe_forward<dnnl::convolution_forward>(engine_, dnnl::prop_kind::forward_training, kDirect, d.x, d.w_any,
                                                  d.b, d.y_written, d.strides, d.padding, d.padding);
  ConvPlan plan;
  Desc w;
  switch (key.pass) {
    case ConvPass::forward:
      w = forward.weights_desc();
      plan.convolve = prepare<dnnl::convolution_forward>(
          forward, {{DNNL_ARG_SRC, d.x}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DST, d.y_written}, {DNNL_ARG_BIAS, d.b}});
      break;
    case ConvPass::backward_data: {
      const auto backward = describe_backward<dnnl::convolution_backward_data>(
          engine_, forward, kDirect, d.x_written, d.w_any, d.y, d.strides, d.padding, d.padding);
      w = backward.weights_desc();
      plan.convolve = prepare<dnnl::convolution_backward_data>(
          backward, {{DNNL_ARG_DIFF_DST, d.y}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DIFF_SRC, d.x_written}});
      break;
    }
    case ConvPass::backward_weights: {
      const auto backward = describe_backward<dnnl::convolution_backward_weights>(
          engine_, forward, kDirect, d.x, d.w_written, d.b, d.y, d.strides, d.padding, d.padding);
      w = backward.diff_weights_desc();
      plan.convolve = prepare<dnnl::convolution_backward_weights>(
          backward,
          {{DNNL_ARG_SRC, d.x}, {DNNL_ARG_DIFF_DST, d.y}, {DNNL_ARG_DIFF_WEIGHTS, w}, {DNNL_ARG_DIFF_BIAS, d.b}});
      break;
    }
  }
  const bool writes_weights = key.pass == ConvPass::backward_weights;
  plan.weights = w;
  plan.bf16 = key.bf16;
  find_block(d, plan);
  plan.reorder = writes_weights ? reorder(engine_, w, d.w_plain) : reorder(engine_, d.w_plain, w);
  return plan;
}

}  // namespace duet::cpu
