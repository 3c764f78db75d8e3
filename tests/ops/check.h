// Shared by the tests of operators: leaves with known values, shapes drawn at random, comparison with the reference.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "lib/autograd/variable.h"
#include "lib/ops/ops.h"
#include "lib/random.h"
#include "tests/support/catch2.h"
#include "tests/support/reference.h"

namespace duet_test {

/// Largest difference allowed, relative to the largest entry of a tensor.
inline constexpr double kTolerance = 1e-5;

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN(),
                       kInfinity = std::numeric_limits<float>::infinity();

inline duet::Tensor label_tensor(const std::vector<std::int64_t>& labels) {
  return duet::from_values<std::int64_t>({static_cast<std::int64_t>(labels.size())}, labels);
}

/// Also of tensors on GPUs.
inline bool same_bits(const duet::Tensor& a, const duet::Tensor& b) {
  const duet::Tensor left = a.to(duet::Device{}), right = b.to(duet::Device{});
  return left.shape() == right.shape() && left.dtype() == right.dtype() &&
         std::memcmp(left.raw(), right.raw(), left.bytes()) == 0;
}

inline duet::Variable leaf(const Array& array) { return duet::Variable(to_tensor(array), true); }

/// One of the numbers of channels that take different paths: common, odd, or anything up to 70.
inline std::int64_t random_channels(duet::Mt19937& generator) {
  constexpr std::int64_t kCommon[] = {1, 3, 8, 16, 32, 64};
  const std::int64_t choice = generator.randint(0, 9);
  return choice < 6 ? kCommon[choice] : generator.randint(1, 71);
}

/// The layouts in which a tensor of so many channels can lie.
inline std::vector<duet::Layout> layouts_of(std::int64_t channels) {
  std::vector<duet::Layout> layouts = {duet::Layout::plain};
  if (channels % 8 == 0) layouts.push_back(duet::Layout::blocked8);
  if (channels % 16 == 0) layouts.push_back(duet::Layout::blocked16);
  return layouts;
}

/// Runs backward from y with this gradient, given in the plain layout.
inline void backward(const duet::Variable& y, const Array& dy) { duet::ops::to_plain(y).backward(to_tensor(dy)); }

inline std::vector<std::int64_t> random_labels(std::int64_t rows, std::int64_t classes, duet::Mt19937& generator) {
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < rows; ++i) labels.push_back(generator.randint(0, classes));
  return labels;
}

}  // namespace duet_test
