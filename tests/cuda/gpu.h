// Shared by the tests of CUDA devices: leaves on the first GPU, comparison with the reference in double.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/backend/backend.h"
#include "tests/ops/check.h"

/// Skips the test case, with the reason, where no GPU, real or simulated, can be used.
#define DUET_NEEDS_CUDA()                             \
  do {                                                \
    const std::string no_cuda = duet::why_no_cuda();  \
    if (!no_cuda.empty()) DUET_SKIP(no_cuda.c_str()); \
  } while (0)

namespace duet_test {

inline constexpr duet::Device kGpu = {duet::DeviceKind::cuda, 0};

inline duet::Tensor on_gpu(const duet::Tensor& tensor) { return tensor.to(kGpu); }
inline duet::Tensor on_gpu(const Array& array) { return to_tensor(array).to(kGpu); }
inline duet::Tensor on_cpu(const duet::Tensor& tensor) { return tensor.to(duet::Device{}); }
inline duet::Variable gpu_leaf(const Array& array) { return duet::Variable(on_gpu(array), true); }

inline double gpu_error(const duet::Tensor& tensor, const Array& expected) {
  return relative_error(on_cpu(tensor), expected);
}

/// A tensor with these values that starts `skip` elements into its memory: in flat buffers parameters lie anywhere.
inline duet::Tensor gpu_view(const Array& array, std::int64_t skip) {
  const duet::Tensor flat = duet::empty({array.shape.count() + skip}, duet::DType::f32, kGpu);
  const duet::Tensor view = flat.slice(skip, array.shape);
  duet::copy(to_tensor(array), view);
  return view;
}

inline duet::Tensor label_tensor(const std::vector<std::int64_t>& labels) {
  return duet::from_values<std::int64_t>({static_cast<std::int64_t>(labels.size())}, labels);
}

inline Array as_array(const duet::Tensor& tensor) {
  Array array(tensor.shape());
  const duet::Tensor host = on_cpu(tensor);
  const auto values = host.span<float>();
  std::copy(values.begin(), values.end(), array.values.begin());
  return array;
}

inline std::vector<std::uint8_t> bytes_of(const duet::Tensor& tensor) {
  const duet::Tensor host = on_cpu(tensor);
  const auto bytes = host.span<std::uint8_t>();
  return {bytes.begin(), bytes.end()};
}

/// Sets the GPUs' precision until its destructor.
class WithPrecision {
 public:
  explicit WithPrecision(duet::Precision precision) { backend().set_precision(precision); }
  ~WithPrecision() { backend().set_precision(duet::Precision::fp32); }
  WithPrecision(const WithPrecision&) = delete;
  WithPrecision& operator=(const WithPrecision&) = delete;

 private:
  static duet::Backend& backend() { return duet::backend(duet::DeviceKind::cuda); }
};

/// Largest difference allowed, relative to the largest entry of a tensor. Tensor cores may truncate to TF32's 10 bits
/// of mantissa instead of rounding, which makes every product smaller by up to 2^-9.
inline double tolerance(duet::Precision precision) {
  return precision == duet::Precision::fp32 ? 1e-5 : precision == duet::Precision::tf32 ? 2e-3 : 1e-2;
}

inline constexpr duet::Precision kPrecisions[] = {duet::Precision::fp32, duet::Precision::tf32, duet::Precision::bf16};

}  // namespace duet_test
