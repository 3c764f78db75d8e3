#include "samplers/sequential.h"

#include <cstdint>
#include <numeric>

#include "lib/error.h"

namespace duet::samplers {

SequentialSampler::SequentialSampler(std::int64_t n) {
  require<UsageError>(n >= 0, "cannot sample from ", n, " items");
  indices_.resize(static_cast<std::size_t>(n));
  std::iota(indices_.begin(), indices_.end(), std::int64_t{0});
}

}  // namespace duet::samplers
