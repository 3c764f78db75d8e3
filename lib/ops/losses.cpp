#include "lib/ops/losses.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/blocks.h"
#include "lib/ops/ops.h"
#include "lib/ops/record.h"

namespace duet::ops {
namespace {

/// 1 / (rows * columns) for the value, and with the global rows for the gradient.
struct Factors {
  Factors(const char* op, const Tensor& x, const Tensor& other, std::int64_t columns) {
    require_same_rows(op, x.stamp(), other.stamp());
    const Rows stamp = x.stamp().stamped() ? x.stamp() : other.stamp();
    require_rows_of_batch(stamp, x.size(0));  // the divisor, on any device
    const std::int64_t global = stamp.stamped() ? stamp.global : x.size(0);
    value = 1.0f / static_cast<float>(x.size(0) * columns);
    gradient = 1.0f / static_cast<float>(global * columns);
    normaliser = normaliser_of(stamp, x.size(0));
  }
  float value, gradient;
  Normaliser normaliser;
};

/// A loss, and on CPU the sums of its blocks, in one piece of memory.
struct LossPlace {
  explicit LossPlace(const Tensor& x) {
    // Without its stamp it is not known which blocks of the batch its rows are.
    const int blocks = x.device().kind == DeviceKind::cpu && x.stamp().stamped() ? x.stamp().blocks : 0;
    whole = empty(blocks > 0 ? Shape{1 + blocks} : Shape{}, DType::f32, x.device());
    value = whole.slice(0, {});
    if (blocks > 0) block_sums = whole.slice(1, {blocks});
  }
  Tensor whole, value, block_sums;
};

struct NllLossGradient {
  static constexpr const char* kName = "nll_loss";
  void backward(const Gradients& g) const {
    backend(labels).nll_loss_backward(g.outputs[0], labels, factor, g.place(0, shape, labels.device()));
  }
  auto saved() const { return std::tie(labels); }
  SavedTensor labels;
  Shape shape;
  float factor = 0;
  Tensor block_sums{};
};

/// nll_loss behind log_softmax: the gradient goes past it, straight to its argument. That of a loss which is the end of
/// the tape was made with its value.
struct LogSoftmaxNllGradient {
  static constexpr const char* kName = "nll_loss";
  static constexpr bool kStartsFromOne = true;
  void backward(const Gradients& g) const {
    if (!g.outputs[0].defined()) {
      g.inputs[0] = from_one;
      return;
    }
    backend(y).log_softmax_nll_backward(g.outputs[0], y, labels, factor, g.place(0, y.shape(), y.device()));
  }
  auto saved() const { return std::tie(y, labels, from_one); }
  SavedTensor y, labels, from_one;
  float factor = 0;
  Tensor block_sums{};
};

struct CrossEntropyGradient {
  static constexpr const char* kName = "cross_entropy";
  void backward(const Gradients& g) const {
    backend(y).smoothed_nll_backward(g.outputs[0], y, labels, smoothing, factor, g.place(0, y.shape(), y.device()));
  }
  auto saved() const { return std::tie(y, labels); }
  SavedTensor y, labels;  // y: log_softmax of the logits
  float smoothing = 0, factor = 0;
  Tensor block_sums{};
};

struct MseLossGradient {
  static constexpr const char* kName = "mse_loss";
  void backward(const Gradients& g) const {
    backend(x).mse_loss_backward(g.outputs[0], x, target, factor, g.place(0, x.shape(), x.device()));
  }
  auto saved() const { return std::tie(x, target); }
  SavedTensor x, target;
  float factor = 0;
  Tensor block_sums{};
};

/// A loss that is the mean of a function of each element and its target.
struct ElementLoss {
  const char* name;
  Pointwise gradient;
};
constexpr ElementLoss loss_of(Pointwise f) {
  switch (f) {
    case Pointwise::absolute_error: return {"l1_loss", Pointwise::absolute_error_gradient};
    case Pointwise::cross_entropy: return {"binary_cross_entropy", Pointwise::cross_entropy_gradient};
    case Pointwise::logit_cross_entropy:
      return {"binary_cross_entropy_with_logits", Pointwise::logit_cross_entropy_gradient};
    default: return {"batch_mean", Pointwise::copy};
  }
}

template <Pointwise kFunction>
struct ElementLossGradient {
  static constexpr const char* kName = loss_of(kFunction).name;
  void backward(const Gradients& g) const {
    const Tensor weight = g.outputs[0].clone();
    backend(weight).scale(weight, factor);
    const Tensor& dx = g.place(0, shape, weight.device());
    const Strided each = broadcast(weight, shape), input = kFunction == Pointwise::copy ? each : broadcast(x, shape);
    backend(dx).pointwise(loss_of(kFunction).gradient, shape, {input, broadcast(target, shape), each},
                          broadcast(dx, shape));
  }
  auto saved() const { return std::tie(x, target); }
  static constexpr bool kLinear = kFunction == Pointwise::copy;
  SavedTensor x, target;  // undefined for a mean
  Shape shape;
  float factor = 0;
};

struct MeanOfShardsNode final : Node {
  const char* name() const override { return "mean_of_shards"; }
  /// Shards without rows get a gradient too: their layers may take part in sums over the batch.
  void backward(const Gradients& g) override {
    const Tensor& whole = g.outputs[0];
    for (std::size_t i = 0; i < devices.size(); ++i) {
      if (!g.wanted(i)) continue;
      const Tensor own = weights[i] == 1 ? whole : whole.clone();
      if (weights[i] != 1) backend(own).scale(own, weights[i]);
      const bool shared = own.device().kind == devices[i].kind && backend(own).shares_memory();
      g.inputs[i] = shared ? own.alias(devices[i]) : own.to(devices[i]);
    }
  }
  std::span<const float> block_sums(int) const override { return sums; }
  PooledVector<Device> devices;
  PooledVector<float> weights;  // factors of the gradient, by device
  PooledVector<float> sums;     // of the shards' blocks; empty: not known of all
};

/// Sums over the shards, each of which has blocks of its own.
PooledVector<float> add_blocks(std::span<const Variable> losses, std::span<const std::int64_t> rows) {
  PooledVector<float> sums;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    if (rows[i] == 0) continue;
    const std::span<const float> own = block_sums(losses[i]);
    if (own.empty() || (!sums.empty() && own.size() != sums.size())) return {};
    sums.resize(own.size(), 0);
    std::transform(sums.begin(), sums.end(), own.begin(), sums.begin(), std::plus<>());
  }
  return sums;
}

/// Whether all losses divide by the rows of their stamped batch.
bool divide_by_batch(std::span<const Variable> losses) {
  unsigned normalisers = 0;
  for (const Variable& loss : losses) {
    if (!loss.requires_grad()) continue;
    normalisers |= loss.edge().normalisers();
    require<UsageError>((loss.edge().kinds() & kBatchSum) == 0,
                        "a loss in the replicas is a sum over rows, expected a mean: compute it from the output");
  }
  const bool own = (normalisers & kOwnRows) != 0, batch = (normalisers & ~unsigned{kOwnRows}) != 0;
  require<UsageError>(!own || !batch,
                      "a loss in the replicas adds terms that are divided by the rows of the batch to terms that are "
                      "not: their gradients cannot be weighted alike; compute it from the gathered output");
  return batch;
}

void require_beside(const char* op, const Variable& x, const Tensor& other, const char* what) {
  require<DeviceError>(on(x.device(), other).device() == x.device(), op, ": input on ", x.device(), ", ", what, " on ",
                       other.device(), ", expected one device: ", kMakeThere);
}

/// Checks (N, ..., C) logits and (N, ...) labels.
void require_labels(const char* op, const Variable& x, const Tensor& labels) {
  if (!x.defined() || x.shape().rank() < 3) require_rank(op, x, 2, "(N, C)");
  require_floats(op, x);
  Shape expected;
  for (int d = 0; d < x.shape().rank() - 1; ++d) expected.append(x.shape()[d]);
  require<ShapeError>(labels.shape() == expected && labels.dtype() == DType::i64, op, ": labels ", labels.shape(), " ",
                      name(labels.dtype()), ", expected ", expected, " i64",
                      x.shape().rank() > 2 ? ": the logits' last dimension is the classes" : "");
  require_beside(op, x, labels, "labels");
}

/// The logits and labels of all places of all rows as rows of a batch, and the factors of that batch's loss.
struct LabelledRows {
  LabelledRows(const char* op, const Variable& logits, const Tensor& of)
      : x(logits), labels(on(x.device(), of)), factors(op, logits.value(), of, of.shape().count_from(1)) {
    if (x.shape().rank() == 2) return;
    x = reshape(x, {vectors_of(x.shape()), x.size(-1)});
    labels = labels.reshape({labels.count()});
  }
  Variable x;
  Tensor labels;
  Factors factors;
};

Variable nll_of_rows(const Variable& x, const Tensor& labels, const Factors& factors) {
  const LossPlace loss(x.value());
  if (const Edge* const logits = recorded({&x}) ? log_softmax_argument(x) : nullptr) {
    const Tensor dx = empty(x.shape(), DType::f32, x.device());
    backend(dx).log_softmax_nll_forward(x.value(), labels, factors.value, loss.whole, factors.gradient, dx);
    const Variable receiver(x.value(), logits->node, logits->output);
    const auto gradient = [&] {
      return LogSoftmaxNllGradient{
          {x.value(), "input"}, {labels, "labels"}, {dx, "gradient"}, factors.gradient, loss.block_sums};
    };
    return record(loss.value, {&receiver}, gradient, factors.normaliser);
  }
  backend(labels).nll_loss_forward(x.value(), labels, factors.value, loss.whole);
  const auto gradient = [&] {
    return NllLossGradient{{labels, "labels"}, x.shape(), factors.gradient, loss.block_sums};
  };
  return record(loss.value, {&x}, gradient, factors.normaliser);
}

/// How much each place counts, by its label.
struct CountedLabels {
  CountedLabels(const char* op, const Tensor& of, std::int64_t classes, const LabelOptions& options) {
    const bool weighs = options.weight.defined();
    if (weighs)
      require<ShapeError>(options.weight.shape() == Shape{classes} && options.weight.dtype() == DType::f32, op,
                          ": weights ", options.weight.shape(), ", expected f32 ", Shape{classes});
    const Tensor given = of.to(Device{}),
                 by_class = weighs ? options.weight.to(Device{}) : from_values<float>({1}, {1});
    for (const float w : by_class.span<float>()) unit = std::max(unit, std::ldexp(std::abs(double{w}), -31));
    if (unit == 0) unit = 1;
    const Tensor in_range = empty(of.shape(), DType::i64), each = empty({of.count(), 1});
    std::vector<std::int64_t> counted, counted_labels;
    std::vector<float> counted_weights;
    for (std::int64_t i = 0; i < of.count(); ++i) {
      const std::int64_t label = given.data<std::int64_t>()[i];
      const bool counts = label != options.ignore_index;
      require<ShapeError>(!counts || (label >= 0 && label < classes), "Target ", label, " is out of bounds.");
      const float w = counts ? by_class.data<float>()[weighs ? label : 0] : 0;
      in_range.data<std::int64_t>()[i] = counts ? label : 0;
      each.data<float>()[i] = w;
      if (!counts) continue;
      units += std::llround(double{w} / unit);
      counted.push_back(i);
      counted_labels.push_back(label);
      counted_weights.push_back(w);
    }
    const std::int64_t rows = std::ssize(counted);
    const Device device = of.device();
    all = {in_range.to(device), each.to(device)};
    those = {from_values<std::int64_t>({rows}, counted_labels).to(device),
             from_values<float>({rows, 1}, counted_weights).to(device)};
    places = from_values<std::int64_t>({rows}, counted).to(device);
  }
  double sum() const { return static_cast<double>(units) * unit; }

  struct Rows {
    Tensor labels, weights;  // weights: a column
  };
  Rows all{}, those{};     // of all places, label and weight 0 where one counts nothing; of those that count
  Tensor places{};         // that count
  std::int64_t units = 0;  // the sum of the weights in whole numbers, which add up exactly on any number of ranks
  double unit = 0;
};

/// The loss of log-probabilities y.
Tensor counted_nll(const Tensor& y, const CountedLabels& counted, const LabelOptions& options) {
  const Tensor loss = empty({}, DType::f32, y.device());
  const bool sums = options.reduction == Reduction::sum;
  const Shape shape = {counted.places.count(), y.size(1)};
  if (shape[0] == 0) {
    backend(loss).fill(loss, sums ? 0 : std::numeric_limits<float>::quiet_NaN());
    return loss;
  }
  const Tensor rows = empty(shape, DType::f32, y.device());
  backend(rows).gather_rows(y, counted.places, rows);
  const Strided each = broadcast(rows, shape);
  backend(rows).pointwise(Pointwise::mul, shape, {each, broadcast(counted.those.weights, shape), {}}, each);
  const auto smoothing = static_cast<float>(options.label_smoothing);
  const auto factor = static_cast<float>(sums ? 1 : 1 / counted.sum());
  if (smoothing == 0)
    backend(rows).nll_loss_forward(rows, counted.those.labels, factor, loss);
  else
    backend(rows).smoothed_nll_forward(rows, counted.those.labels, smoothing, factor, loss);
  return loss;
}

template <bool kLogits>
struct CountedLossGradient {
  static constexpr const char* kName = kLogits ? CrossEntropyGradient::kName : NllLossGradient::kName;
  void backward(const Gradients& g) const {
    const double sum = divisor < 0 ? 1 : static_cast<double>(divisor) * unit;
    const auto factor = static_cast<float>(sum == 0 ? 0 : 1 / sum);
    const Tensor& dx = g.place(0, shape, labels.device());
    if (kLogits)
      backend(dx).smoothed_nll_backward(g.outputs[0], y, labels, smoothing, factor, dx);
    else
      backend(dx).nll_loss_backward(g.outputs[0], labels, factor, dx);
    const Strided each = broadcast(dx, shape);
    backend(dx).pointwise(Pointwise::mul, shape, {each, broadcast(weights, shape), {}}, each);
  }
  auto saved() const { return std::tie(y, labels, weights); }
  SavedTensor y, labels, weights;  // y: log_softmax of the logits
  Shape shape;
  float smoothing = 0;
  std::int64_t divisor = -1;  // in units; negative: of a sum
  double unit = 1;
};

template <bool kLogits>
Variable counted_loss(const Variable& input, const Tensor& of, const LabelOptions& options) {
  using Gradient = CountedLossGradient<kLogits>;
  require_labels(Gradient::kName, input, of);
  const double smoothing = options.label_smoothing;
  require<UsageError>(smoothing == 0 || (kLogits && smoothing > 0 && smoothing <= 1 && !options.weight.defined()),
                      Gradient::kName, ": label smoothing ", smoothing,
                      ", expected 0 to 1, and 0 with weights and for ", NllLossGradient::kName);
  const LabelledRows rows(Gradient::kName, input, of);
  const Variable& x = rows.x;
  const CountedLabels counted(Gradient::kName, rows.labels, x.size(1), options);
  const Tensor y = kLogits ? result_of(x, x.shape()) : x.value();
  if (kLogits) backend(y).log_softmax_forward(x.value(), y);
  const bool sums = options.reduction == Reduction::sum;
  const auto gradient = [&] {
    return Gradient{kLogits ? SavedTensor(y, "log_softmax") : SavedTensor(),
                    {counted.all.labels, "labels"},
                    {counted.all.weights, "weights"},
                    x.shape(),
                    static_cast<float>(smoothing),
                    sums ? -1 : counted.units,
                    counted.unit};
  };
  return record(counted_nll(y, counted, options), {&x}, gradient,
                rows.factors.normaliser | (sums ? unsigned{kBatchSum} : 0));
}

}  // namespace

Variable nll_loss(const Variable& x, const Tensor& labels, const LabelOptions& options) {
  return counted_loss<false>(x, labels, options);
}

Variable cross_entropy(const Variable& x, const Tensor& labels, const LabelOptions& options) {
  return counted_loss<true>(x, labels, options);
}

Variable nll_loss(const Variable& x, const Tensor& labels) {
  require_labels("nll_loss", x, labels);
  const LabelledRows rows(NllLossGradient::kName, x, labels);
  return nll_of_rows(rows.x, rows.labels, rows.factors);
}

Variable cross_entropy(const Variable& logits, const Tensor& of, double label_smoothing) {
  constexpr const char* kOp = CrossEntropyGradient::kName;
  require_labels(kOp, logits, of);
  require<UsageError>(label_smoothing >= 0 && label_smoothing <= 1, kOp, ": label smoothing ", label_smoothing,
                      ", expected 0 to 1");
  const LabelledRows rows(kOp, logits, of);
  const Variable& x = rows.x;
  const Tensor& labels = rows.labels;
  const Factors& factors = rows.factors;
  if (label_smoothing == 0) return nll_of_rows(log_softmax(x), labels, factors);
  const auto smoothing = static_cast<float>(label_smoothing);
  const LossPlace loss(x.value());
  const Tensor y = result_of(x, x.shape());
  backend(y).log_softmax_forward(x.value(), y);
  backend(y).smoothed_nll_forward(y, labels, smoothing, factors.value, loss.whole);
  const auto gradient = [&] {
    return CrossEntropyGradient{{y, "log_softmax"}, {labels, "labels"}, smoothing, factors.gradient, loss.block_sums};
  };
  return record(loss.value, {&x}, gradient, factors.normaliser);
}

std::int64_t count_in_top(const Variable& x, const Tensor& labels, std::int64_t k) {
  require_rank("count_in_top", x, 2, "(N, C)");
  require_labels("count_in_top", x, labels);
  require<UsageError>(k >= 1 && k <= x.shape()[1], "count_in_top: the largest ", k, " of ", x.shape()[1],
                      " classes, expected 1 to ", x.shape()[1]);
  return backend(x.value()).count_in_top(x.value(), labels, k);
}

namespace {

/// Checks the arguments of a loss of elements; gives the prediction in the plain layout.
Variable prediction(const char* op, const Variable& input, const Tensor& target) {
  require_floats(op, input);
  require_floats(op, Variable(target));
  require<ShapeError>(target.layout() == Layout::plain, op, ": target in layout ", name(target.layout()),
                      ", expected plain");
  const Variable x = to_plain(input);
  require<ShapeError>(x.shape() == target.shape() && x.shape().rank() >= 1, op, ": input ", x.shape(), " and target ",
                      target.shape(), " differ");
  require_beside(op, x, target, "target");
  return x;
}

/// The mean of f of all elements; without a target f is copy.
template <Pointwise kFunction>
Variable element_loss(const Variable& x, const Tensor& target) {
  const Shape& shape = x.shape();
  const Factors factors(loss_of(kFunction).name, x.value(), target.defined() ? target : x.value(), shape.count_from(1));
  Tensor each = x.value();
  if (kFunction != Pointwise::copy) {
    each = empty(shape, DType::f32, x.device());
    backend(each).pointwise(kFunction, shape, {broadcast(x.value(), shape), broadcast(target, shape), {}},
                            broadcast(each, shape));
    each.set_stamp(x.value().stamp().stamped() ? x.value().stamp() : target.stamp());
  }
  const Tensor loss = empty({}, DType::f32, x.device());
  Shape one;
  for (int d = 0; d < shape.rank(); ++d) one.append(1);
  backend(loss).sum(each, true, loss.reshape(one));
  backend(loss).scale(loss, factors.value);
  const auto gradient = [&] {
    ElementLossGradient<kFunction> kept{{}, {}, shape, factors.gradient};
    if (target.defined()) kept.x = SavedTensor(x, "input"), kept.target = SavedTensor(target, "target");
    return kept;
  };
  return record(loss, {&x}, gradient, factors.normaliser);
}

template <Pointwise kFunction>
Variable checked_loss(const Variable& x, const Tensor& target) {
  return element_loss<kFunction>(prediction(loss_of(kFunction).name, x, target), on(x.device(), target));
}

}  // namespace

Variable mse_loss(const Variable& input, const Tensor& of) {
  const Variable x = prediction("mse_loss", input, of);
  const Tensor target = on(x.device(), of);
  const Factors factors(MseLossGradient::kName, x.value(), target, x.shape().count_from(1));
  const LossPlace loss(x.value());
  backend(target).mse_loss_forward(x.value(), target, factors.value, loss.whole);
  const auto gradient = [&] {
    return MseLossGradient{{x, "input"}, {target, "target"}, factors.gradient, loss.block_sums};
  };
  return record(loss.value, {&x}, gradient, factors.normaliser);
}

std::span<const float> block_sums(const Variable& loss) {
  return loss.requires_grad() && loss.edge().node != nullptr ? loss.edge().node->block_sums(loss.edge().output)
                                                             : std::span<const float>();
}

float mean_of_blocks(std::span<const float> sums, std::int64_t terms) {
  require<UsageError>(!sums.empty() && terms > 0, "the mean of ", terms, " terms from the sums of ", sums.size(),
                      " blocks: expected at least one of each");
  std::vector<float> parts(sums.begin(), sums.end());
  const auto leaf = [](int low, int high) { return high - low == 1 ? low : -1; };
  add_by_tree(0, static_cast<int>(parts.size()), leaf,
              [&](int to, int from) { parts[static_cast<std::size_t>(to)] += parts[static_cast<std::size_t>(from)]; });
  return parts.at(0) * (1.0f / static_cast<float>(terms));
}

Variable l1_loss(const Variable& x, const Tensor& target) { return checked_loss<Pointwise::absolute_error>(x, target); }
Variable binary_cross_entropy(const Variable& x, const Tensor& target) {
  return checked_loss<Pointwise::cross_entropy>(x, target);
}
Variable binary_cross_entropy_with_logits(const Variable& x, const Tensor& target) {
  return checked_loss<Pointwise::logit_cross_entropy>(x, target);
}

Variable batch_mean(const Variable& input) {
  require_floats("batch_mean", input);
  const Variable x = to_plain(input);
  require<ShapeError>(x.shape().rank() >= 1, "batch_mean: got a scalar, expected (N, ...)");
  return element_loss<Pointwise::copy>(x, {});
}

Variable mean_of_shards(std::span<const Variable> losses, std::span<const std::int64_t> rows, const Rows& batch,
                        Device device) {
  require<ShapeError>(!losses.empty() && losses.size() == rows.size(), "mean_of_shards: ", losses.size(),
                      " losses and ", rows.size(), " numbers of rows");
  std::int64_t total = 0;
  for (const std::int64_t n : rows) total += n;
  const auto weight = [&](std::size_t i) { return static_cast<float>(rows[i]) / static_cast<float>(total); };
  // On the device, so that the host need not wait for the losses.
  Tensor value;
  bool record = false;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    record |= grad_enabled() && losses[i].requires_grad();
    if (rows[i] == 0) continue;
    const Tensor part = empty(losses[0].shape(), DType::f32, device);
    copy(losses[i].value(), part);
    backend(part).scale(part, weight(i));
    if (value.defined()) {
      backend(value).add(value, part, value);
    } else {
      value = part;
    }
  }
  if (!value.defined()) value = zeros(losses[0].shape(), DType::f32, device);
  if (!record) return Variable::constant(value, true);
  auto node = make_pooled<MeanOfShardsNode>();
  const bool shares = divide_by_batch(losses);
  for (std::size_t i = 0; i < losses.size(); ++i) {
    node->add_edge(losses[i].edge(), true);
    node->devices.push_back(losses[i].device());
    node->weights.push_back(shares || total == 0 ? 1.0f : weight(i));
  }
  node->sums = add_blocks(losses, rows);
  node->set_kinds((shares ? normaliser_of(batch, total) : kOwnRows) | unsigned{kBatchMean} |
                  (node->kinds_of(0) & kCut));
  return Variable(value, std::move(node));
}

}  // namespace duet::ops
