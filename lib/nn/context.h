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
  /// Set by wrappers that cut batches over devices, for layers that need statistics of the whole batch.
  BatchSums* batch_sums = nullptr;

  const Variable& parameter(int number) const { return store->variable(number - first_slot); }
  const Tensor& buffer(int number) const {
    return store->buffers()[static_cast<std::size_t>(number - first_buffer)].tensor;
  }
};

}  // namespace duet::nn
