// Which pixels an output of average pooling averages, and which outputs average a pixel.
#pragma once

#include <cstdint>

#include "lib/backend/arithmetic/host_device.h"
#include "lib/backend/average_pool.h"

namespace duet::arithmetic {

/// Pixels [first_pixel, end_pixel) are averaged to output i; at least one.
DUET_HOST_DEVICE inline std::int64_t first_pixel(const AverageAxis& axis, std::int64_t i) {
  if (axis.kernel == 0) return i * axis.size / axis.out;
  const std::int64_t first = i * axis.stride - axis.pad;
  return first < 0 ? 0 : first;
}
DUET_HOST_DEVICE inline std::int64_t end_pixel(const AverageAxis& axis, std::int64_t i) {
  if (axis.kernel == 0) return ((i + 1) * axis.size + axis.out - 1) / axis.out;
  const std::int64_t end = i * axis.stride - axis.pad + axis.kernel;
  return end < axis.size ? end : axis.size;
}

/// What the sum of output (p, q) is divided by.
DUET_HOST_DEVICE inline float pixels_of(const AveragePool& pool, std::int64_t p, std::int64_t q) {
  const std::int64_t h = pool.h.counts_padding ? pool.h.kernel : end_pixel(pool.h, p) - first_pixel(pool.h, p);
  const std::int64_t w = pool.w.counts_padding ? pool.w.kernel : end_pixel(pool.w, q) - first_pixel(pool.w, q);
  return static_cast<float>(h * w);
}

/// Pixel i is averaged to outputs [first_output, end_output).
DUET_HOST_DEVICE inline std::int64_t first_output(const AverageAxis& axis, std::int64_t i) {
  if (axis.kernel == 0) return i * axis.out / axis.size;
  const std::int64_t past = i + axis.pad - axis.kernel;  // windows that start here or before end before the pixel
  return past < 0 ? 0 : past / axis.stride + 1;
}
DUET_HOST_DEVICE inline std::int64_t end_output(const AverageAxis& axis, std::int64_t i) {
  if (axis.kernel == 0) return ((i + 1) * axis.out + axis.size - 1) / axis.size;
  const std::int64_t end = (i + axis.pad) / axis.stride + 1;
  return end < axis.out ? end : axis.out;
}

}  // namespace duet::arithmetic
