// Which pixels an output of average pooling averages, and which outputs average a pixel. Axis: AverageAxis, or one of
// shorter integers; Index: its integer.
#pragma once

#include "lib/backend/arithmetic/host_device.h"

namespace duet::arithmetic {

/// Pixels [first_pixel, end_pixel) are averaged to output i; at least one.
template <class Axis, class Index>
DUET_HOST_DEVICE inline Index first_pixel(const Axis& axis, Index i) {
  if (axis.kernel == 0) return i * axis.size / axis.out;
  const Index first = i * axis.stride - axis.pad;
  return first < 0 ? 0 : first;
}
template <class Axis, class Index>
DUET_HOST_DEVICE inline Index end_pixel(const Axis& axis, Index i) {
  if (axis.kernel == 0) return ((i + 1) * axis.size + axis.out - 1) / axis.out;
  const Index end = i * axis.stride - axis.pad + axis.kernel;
  return end < axis.size ? end : axis.size;
}

/// What the sum of output (p, q) is divided by.
template <class Pool, class Index>
DUET_HOST_DEVICE inline float pixels_of(const Pool& pool, Index p, Index q) {
  const Index h = pool.h.counts_padding ? pool.h.kernel : end_pixel(pool.h, p) - first_pixel(pool.h, p);
  const Index w = pool.w.counts_padding ? pool.w.kernel : end_pixel(pool.w, q) - first_pixel(pool.w, q);
  return static_cast<float>(h * w);
}

/// Pixel i is averaged to outputs [first_output, end_output).
template <class Axis, class Index>
DUET_HOST_DEVICE inline Index first_output(const Axis& axis, Index i) {
  if (axis.kernel == 0) return i * axis.out / axis.size;
  const Index past = i + axis.pad - axis.kernel;  // windows that start here or before end before the pixel
  return past < 0 ? 0 : past / axis.stride + 1;
}
template <class Axis, class Index>
DUET_HOST_DEVICE inline Index end_output(const Axis& axis, Index i) {
  if (axis.kernel == 0) return ((i + 1) * axis.out + axis.size - 1) / axis.size;
  const Index end = (i + axis.pad) / axis.stride + 1;
  return end < axis.out ? end : axis.out;
}

}  // namespace duet::arithmetic
