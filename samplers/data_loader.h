// torch.utils.data.DataLoader, with its draws from the random generator.
#pragma once

#include <cstdint>
#include <memory>

#include "lib/data/loader.h"

namespace duet::samplers {

struct DataLoaderOptions {
  std::int64_t batch_size = 1;
  bool shuffle = false;
  std::unique_ptr<data::Sampler> sampler{};  // instead of shuffle
  bool drop_last = false;
  Mt19937* generator = nullptr;  // PyTorch's default generator (torch.manual_seed); must be given to shuffle
  int workers = 0;
  int prefetch = 2;
};

/// Every epoch draws as PyTorch does: an int64 base seed from the generator, also with a sampler, then with `shuffle`
/// the int64 seed of the permutation. Making a loader draws nothing. Throws UsageError for options that exclude each
/// other, and for `shuffle` with an empty data set.
data::Loader data_loader(const data::Dataset& dataset, DataLoaderOptions options);
data::Loader data_loader(const data::Dataset&& dataset, DataLoaderOptions options) = delete;

}  // namespace duet::samplers
