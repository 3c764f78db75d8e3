// Which devices a run uses, and what is said of them.
#pragma once

#include <string>
#include <vector>

#include "lib/device.h"

namespace duet::cli {

/// `count` devices of a kind: cuda:0, cuda:1, ... where there are as many GPUs, else logical devices that share the
/// GPUs evenly: cuda:0.0, cuda:0.1, ... CPU devices are always real ones. Throws DeviceError without any device.
std::vector<Device> devices_for(DeviceKind kind, int count);

/// The device of a rank among the `ranks` of this machine; ranks share a GPU where they outnumber the GPUs.
Device device_of_rank(DeviceKind kind, int rank, int ranks);

/// How many of a kind's devices `count` devices occupy: the GPUs for CUDA, `count` for CPU.
int physical_devices(DeviceKind kind, int count);

/// Whether `ranks` ranks of this machine can exchange over NCCL, each with a GPU of its own.
bool can_use_nccl(DeviceKind kind, int ranks);

/// "cpu", "cuda", or "cuda (simulated)".
std::string kind_title(DeviceKind kind);

}  // namespace duet::cli
