// Shared by the tests of CUDA devices: leaves on the first GPU, comparison with the reference in double.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/backend/devices.h"
#include "lib/half.h"
#include "tests/ops/check.h"

/// A test case that is skipped where no GPU, real or simulated, can be used.
#define DUET_CUDA_TEST(...) DUET_TEST_UNLESS(duet::why_no_cuda(), __VA_ARGS__)

namespace duet_test {

inline constexpr duet::Device kGpu = {duet::DeviceKind::cuda, 0}, kOne = {duet::DeviceKind::cuda, 1};

/// Returns logical devices of the first GPU.
inline std::vector<duet::Device> logical_devices(int count) {
  std::vector<duet::Device> devices;
  for (int i = 0; i < count; ++i) devices.push_back({duet::DeviceKind::cuda, 0, i});
  return devices;
}

/// Distinct GPUs where there are as many.
inline std::vector<duet::Device> some_devices(int count) {
  const bool distinct = duet::backend(duet::DeviceKind::cuda).device_count() >= count;
  return distinct ? duet::first_devices(duet::DeviceKind::cuda, count) : logical_devices(count);
}

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

inline Array as_array(const duet::Tensor& tensor) {
  Array array(tensor.shape());
  const duet::Tensor host = on_cpu(tensor);
  const auto values = host.span<float>();
  std::copy(values.begin(), values.end(), array.values.begin());
  return array;
}

inline bool all_are(const duet::Tensor& tensor, float value) {
  const duet::Tensor host = on_cpu(tensor);
  const auto values = host.span<float>();
  return std::all_of(values.begin(), values.end(), [value](float x) { return x == value; });
}

template <class T = float>
std::vector<T> values_of(const duet::Tensor& tensor) {
  const duet::Tensor host = on_cpu(tensor);
  const auto values = host.span<T>();
  return {values.begin(), values.end()};
}

inline std::vector<std::uint8_t> bytes_of(const duet::Tensor& tensor) { return values_of<std::uint8_t>(tensor); }

/// To bf16 and back.
inline Array rounded(const Array& array) {
  Array result = array;
  for (double& value : result.values)
    value = static_cast<double>(duet::from_bf16(duet::to_bf16(static_cast<float>(value))));
  return result;
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
