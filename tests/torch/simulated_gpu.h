// LibTorch's device type "cuda" over the simulated devices.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

namespace duet_test {

/// A stream that waits for no other one.
c10::Stream new_stream(const c10::Device& device);

}  // namespace duet_test
