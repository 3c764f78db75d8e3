// Where a module finds its values when it runs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lib/nn/parameters.h"

namespace duet {
class BatchSums;
class Mt19937;
}  // namespace duet

namespace duet::nn {

/// One set of values for a module, with the mode and the random key of a run. A replica is the same module with another
/// context. Used by one thread at a time.
struct Context {
  ParameterStore* store = nullptr;
  int first_slot = 0;    // number that the store's slot 0 has in the module tree
  int first_buffer = 0;  // the same for buffers
  bool training = true;
  std::uint64_t seed = 0;  // key of dropout
  std::int64_t step = 0;   // step of dropout's key for inputs without a stamp
  /// When set, dropout draws from this stream in PyTorch's order instead of by key.
  Mt19937* stream = nullptr;
  /// Whether chain() and Sequential may run layers as fused operators; not while `stream` is set.
  bool fuse = true;
  /// Set by wrappers that cut batches over devices, for layers that need statistics of the whole batch.
  BatchSums* batch_sums = nullptr;

  /// Not checked: see has_slot() and has_buffer().
  const Variable& parameter(int number) const { return store->variable(number - first_slot); }
  const Tensor& buffer(int number) const {
    return store->buffers()[static_cast<std::size_t>(number - first_buffer)].tensor;
  }
  /// Whether the values are those of this model; whether they include the slot or buffer of this number in its tree.
  bool is_of(std::uint64_t model_id) const { return store != nullptr && store->model_id() == model_id; }
  bool has_slot(std::uint64_t model_id, int number) const {
    return is_of(model_id) && number >= first_slot && number - first_slot < store->slot_count();
  }
  bool has_buffer(std::uint64_t model_id, int number) const {
    return is_of(model_id) && static_cast<std::size_t>(number - first_buffer) < store->buffers().size();
  }
};

}  // namespace duet::nn
