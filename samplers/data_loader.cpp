#include "samplers/data_loader.h"

#include <utility>

#include "lib/error.h"
#include "samplers/batch.h"
#include "samplers/random.h"
#include "samplers/sequential.h"

namespace duet::samplers {

data::Loader data_loader(const data::Dataset& dataset, DataLoaderOptions options) {
  require<UsageError>(!options.sampler || !options.shuffle, "sampler option is mutually exclusive with shuffle");
  require<UsageError>(!options.shuffle || options.generator, "shuffle needs a generator");
  if (!options.sampler) {
    if (options.shuffle) {
      options.sampler = std::make_unique<RandomSampler>(dataset.size(), *options.generator);
    } else {
      options.sampler = std::make_unique<SequentialSampler>(dataset.size());
    }
  }
  const BatchOptions batches{.batch_size = options.batch_size, .drop_last = options.drop_last};
  return data::Loader(dataset, std::make_unique<Batches>(std::move(options.sampler), batches),
                      {.workers = options.workers, .prefetch = options.prefetch, .generator = options.generator});
}

}  // namespace duet::samplers
