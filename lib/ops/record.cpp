#include "lib/ops/record.h"

#include <algorithm>

namespace duet::ops {
namespace {

/// Whether an argument may be a batch: not where it only adds to or scales parameters, place by place.
bool may_be_batch(const Tensor& result, std::span<const Variable* const> inputs, const OperatorKind& op) {
  return !op.by_place || std::ranges::none_of(inputs, [&](const Variable* input) {
    return input->requires_grad() && input->shape() == result.shape();
  });
}

/// kCut if an argument has it, or a constant of other devices' batches would change gradients; kShifted if it would
/// change values only.
unsigned kind_by_constants(std::span<const Variable* const> inputs, const OperatorKind& op) {
  unsigned kinds = 0;
  for (const Variable* input : inputs) {
    if (!input->defined()) continue;
    if (input->requires_grad())
      kinds |= input->edge().kinds() & (kCut | kShifted);
    else if (input->of_batch_mean())
      kinds |= op.linear && !op.reads ? kShifted : kCut;
  }
  return (kinds & kShifted) != 0 && !op.linear && !op.affine ? kinds | kCut : kinds;
}

/// Whether the result adds up samples of the batch that x has, `least` or all of a device's; or is one number of rows.
bool sums_rows(const Tensor& result, const Variable& x, std::int64_t least = 2) {
  if (!x.defined() || x.shape().rank() == 0 || result.stamp().known()) return false;
  const Rows& stamp = x.value().stamp();
  if (stamp.dimension(x.shape()) < 0) return result.count() == 1 && x.size(0) > 1;
  return stamp.samples_in(x.shape()) >= least || stamp.global <= stamp.shards * stamp.per_sample;
}

unsigned kinds_by_arguments(const Tensor& result, std::span<const Variable* const> inputs, const OperatorKind& op) {
  unsigned in = 0, others = 0;  // of all arguments; of those but free ones
  int means = 0, constants = 0;
  bool of_batch = result.stamp().known(), unknown = of_batch || op.reads_rows;
  for (const Variable* input : inputs) {
    if (!input->defined()) continue;
    if (!input->requires_grad()) {
      ++constants;
      of_batch = of_batch || input->value().stamp().known();
      unknown = unknown || of_batch || may_be_batch(result, inputs, op);
      continue;
    }
    const unsigned kinds = input->edge().kinds();
    of_batch = of_batch || (kinds & kFree) == 0;
    in |= kinds;
    if (!is_free(kinds)) others |= kinds, ++means;
  }
  // A number that all devices have times the mean of a device's own rows, which are weighted by their number.
  const bool scales = op.product && means == 1 && constants == 0 && (others & (kDivisors | kFree)) == kOwnRows;
  if ((in & kDivisors) == 0 && unknown) in |= kOwnRows;
  if (of_batch && (in & (kShares | kWholeBatch)) == 0) in &= ~unsigned{kFree};
  const bool free = is_free(in);
  const bool mixed = op.mixes && !free && result.stamp().known();
  const bool curved = mixed || (in & kCurved) != 0 || (!op.linear && !scales && (in & kBatchMean) != 0);
  if (op.divisor != 0 && !(free && op.divisor == kOwnRows))
    return op.divisor | kBatchMean | (curved || (in & kShares) != 0 ? unsigned{kCurved} : 0);
  const unsigned kinds = in & (kDivisors | kFree);
  if (curved) return kinds | kCurved;
  const auto sums = [&](std::int64_t least) {
    return (op.sums || op.mixes) && (kinds & kFree) == 0 &&
           std::ranges::any_of(inputs, [&](const Variable* x) { return sums_rows(result, *x, least); });
  };
  unsigned of_mean = in & (kBatchMean | kBatchSum | kDivided);
  if (op.reads && (in & kBatchSum) != 0) of_mean |= kDivided;
  if ((of_mean & (kBatchMean | kDivided)) == 0 && sums(1)) of_mean |= op.adds ? kBatchSum : kDivided;
  if (sums(2)) of_mean |= kBatchMean;
  return kinds | of_mean;
}

}  // namespace

unsigned kinds_of_result(const Tensor& result, std::span<const Variable* const> inputs, const OperatorKind& op) {
  return kinds_by_arguments(result, inputs, op) | kind_by_constants(inputs, op);
}

Variable constant_of(const Tensor& result, std::span<const Variable* const> inputs, const OperatorKind& op) {
  const bool of_mean = std::ranges::any_of(inputs, [&](const Variable* x) {
    if (!x->defined()) return false;
    const bool is_loss = op.divisor != 0, known = x->value().stamp().known();
    const bool of_batch = x->requires_grad() ? !is_free(x->edge().kinds()) : known || is_loss;
    return x->of_batch_mean() || (of_batch && (op.mixes || is_loss || (op.sums && sums_rows(result, *x))));
  });
  return Variable::constant(result, of_mean);
}

std::optional<Device> device_to_share(const char* op, std::initializer_list<const Variable*> inputs) {
  Device device;  // the first that is not cpu:0, if there is one
  for (const Variable* const input : inputs)
    if (input->defined() && device == Device{}) device = input->device();
  bool shares = false;
  for (const Variable* const input : inputs) {
    if (!input->defined() || input->device() == device) continue;
    const bool trained = recorded({input}) && dynamic_cast<const Leaf*>(input->edge().node.get()) != nullptr;
    require<DeviceError>(is_shared(*input, device), op, ": arguments lie on ", device, " and ", input->device(),
                         ", expected one device: ",
                         trained ? "register a tensor with gradients as a parameter of the module" : kMakeThere);
    shares = true;
  }
  return shares ? std::optional(device) : std::nullopt;
}

}  // namespace duet::ops
