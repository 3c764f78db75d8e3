// What this program runs on, the devices of a run, and what the program was built with.
#pragma once

#include <string>
#include <vector>

#include "lib/device.h"

namespace duet::cli {

inline constexpr int kMaxDevices = 1024;  // limit of a run's devices, and of its ranks

struct Machine {
  std::string cpu;
  int cores = 1;
  std::string isa;
  std::vector<std::string> gpus;
  double memory_gb = 0;
  std::string kernel;
  int sockets = 0;                    // 0: not known
  std::vector<std::string> caches{};  // "L1d 32K x 2": of two cores, each its own; empty: not known
};

/// Reads /proc and the devices. Cores are those that this process may use.
Machine this_machine();
/// Fills sockets and caches from the kernel's list of processors, /sys/devices/system/cpu.
void add_topology(Machine& machine, const std::string& folder);

/// `count` devices of a kind: cuda:0, cuda:1, ... where there are as many GPUs, else logical devices that share the
/// GPUs evenly: cuda:0.0, cuda:0.1, ... CPU devices are always real ones. Throws DeviceError without any device.
std::vector<Device> devices_for(DeviceKind kind, int count);

/// The device of a rank among the `ranks` of this machine; ranks share a GPU where they outnumber the GPUs.
Device device_of_rank(DeviceKind kind, int rank, int ranks);

/// How many of a kind's devices `count` devices occupy: the GPUs for CUDA, `count` for CPU.
int physical_devices(DeviceKind kind, int count);

/// The backend that was asked for; in place of "auto" NCCL where each of `ranks` ranks of this machine has a GPU.
std::string backend_for(DeviceKind kind, int ranks, const std::string& asked);

/// "cpu", "cuda", or "cuda (simulated)".
std::string kind_title(DeviceKind kind);

/// One library and its version, or why it is not there.
struct Library {
  std::string name, version;
  bool present = true;
};
std::vector<Library> libraries();

/// Throws DeviceError with the option --device where no device of this kind can be used.
void require_available(DeviceKind kind);

/// Peak resident memory of this process, in megabytes (1e6 bytes).
double peak_memory_mb();

/// Processor time of this process.
struct CpuUse {
  double used_s = 0;     // processor time of all threads
  double delayed_s = 0;  // that its threads were ready to run and had no core; 0 where the kernel does not count it

  CpuUse operator-(const CpuUse& before) const { return {used_s - before.used_s, delayed_s - before.delayed_s}; }
};
/// So far; threads that have ended count as used only.
CpuUse cpu_use();

}  // namespace duet::cli
