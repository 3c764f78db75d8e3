// Where the time of a training step goes on a CPU, operator by operator, against what the machine can do at most.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/options/options.h"

namespace duet::cli {

/// Floating-point operations are those of one image. `dense` is what a plain convolution or product of matrices takes;
/// `executed` leaves out what the kernels need not do: three of four outputs of a pool's window, zero gradients, and
/// what Winograd's algorithm saves (its transforms are not counted). 0 for operators that are not counted.
struct OperatorRow {
  std::string name;
  double us = 0;  // of one image, median over steps
  double executed = 0, dense = 0;
};

struct OperatorTable {
  std::string isa;         // "AVX-512, 1 thread"
  double peak_gflops = 0;  // multiply-adds in registers, measured on one core, times the device's threads
  std::vector<OperatorRow> rows;
  double step_us = 0;  // whole steps, per image, median
};

/// Times `repeats` times `steps` steps of SimpleCNN in this process, as `duet bench overhead` runs its bare loop. Pins
/// the calling thread.
OperatorTable time_operators(const BenchOptions& options);

/// Lines of text for people.
std::string to_text(const OperatorTable& table, std::int64_t batch);

}  // namespace duet::cli
