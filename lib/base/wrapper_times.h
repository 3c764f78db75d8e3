// Where the time of training steps went, as DataParallel and DistributedDataParallel measure it.
#pragma once

#include <cstdint>

namespace duet {

/// On the host, in microseconds, summed over steps; parts that a wrapper lacks are 0. Of ranks only the steps that
/// synchronise them count, and replays of a recorded step do not.
struct WrapperTimes {
  std::int64_t steps = 0;  // of ranks
  // DataParallel, inside forward.
  double scatter_us = 0, replicate_us = 0, gather_us = 0;
  double forward_us = 0;  // of the module or its replicas
  // Ranks: from the end of forward to the last gradient, the loss included; replicas: their own.
  double backward_us = 0;
  double communication_us = 0;  // from the first bucket sent to the end of the last; replicas: the sum of gradients
  double exposed_us = 0;        // the part of it that backward did not hide
};

}  // namespace duet
