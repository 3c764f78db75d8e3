// Average pooling as plain loops in double.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "tests/support/reference.h"

namespace duet_test::reference {
namespace {

/// The pixels of one output along one axis, and how many count for the mean.
struct Range {
  std::int64_t begin, end, counted;
};

Range window_range(std::int64_t output, std::int64_t kernel, std::int64_t stride, std::int64_t pad, std::int64_t size,
                   bool count_include_pad) {
  const std::int64_t start = output * stride - pad;
  const std::int64_t begin = std::max<std::int64_t>(start, 0), end = std::min(start + kernel, size);
  return {begin, end, count_include_pad ? kernel : end - begin};
}

Range adaptive_range(std::int64_t output, std::int64_t outputs, std::int64_t size) {
  const double step = static_cast<double>(size) / static_cast<double>(outputs), at = static_cast<double>(output);
  // Not exactly a whole number where it should be one.
  const auto begin = static_cast<std::int64_t>(std::floor(at * step + 1e-9)),
             end = static_cast<std::int64_t>(std::ceil((at + 1) * step - 1e-9));
  return {begin, end, end - begin};
}

/// Calls visit(place in y, place in x, pixels of the mean) for every pixel of every mean; `rows` and `columns` give the
/// Range of an output.
template <class Rows, class Columns, class Visit>
void for_each_mean(const duet::Shape& x, const duet::Shape& y, Rows rows, Columns columns, Visit visit) {
  for (std::int64_t image = 0; image < y[0] * y[1]; ++image)
    for (std::int64_t p = 0; p < y[2]; ++p)
      for (std::int64_t q = 0; q < y[3]; ++q) {
        const Range high = rows(p), wide = columns(q);
        for (std::int64_t h = high.begin; h < high.end; ++h)
          for (std::int64_t w = wide.begin; w < wide.end; ++w)
            visit((image * y[2] + p) * y[3] + q, (image * x[2] + h) * x[3] + w,
                  static_cast<double>(high.counted * wide.counted));
      }
}

template <class Visit>
void for_each_windowed(const duet::Shape& x, const duet::Shape& y, const duet::Window2d& window, bool count_include_pad,
                       Visit visit) {
  for_each_mean(
      x, y,
      [&](std::int64_t p) {
        return window_range(p, window.kernel_h, window.stride_h, window.pad_h, x[2], count_include_pad);
      },
      [&](std::int64_t q) {
        return window_range(q, window.kernel_w, window.stride_w, window.pad_w, x[3], count_include_pad);
      },
      visit);
}

template <class Visit>
void for_each_adaptive(const duet::Shape& x, const duet::Shape& y, Visit visit) {
  for_each_mean(
      x, y, [&](std::int64_t p) { return adaptive_range(p, y[2], x[2]); },
      [&](std::int64_t q) { return adaptive_range(q, y[3], x[3]); }, visit);
}

}  // namespace

Array avg_pool2d(const Array& x, const duet::Window2d& window, bool count_include_pad) {
  Array y({x.shape[0], x.shape[1], window.out_h(x.shape[2]), window.out_w(x.shape[3])});
  for_each_windowed(x.shape, y.shape, window, count_include_pad,
                    [&](std::int64_t to, std::int64_t from, double pixels) { y[to] += x[from] / pixels; });
  return y;
}

Array avg_pool2d_backward(const Array& x, const Array& dy, const duet::Window2d& window, bool count_include_pad) {
  Array dx(x.shape);
  for_each_windowed(x.shape, dy.shape, window, count_include_pad,
                    [&](std::int64_t to, std::int64_t from, double pixels) { dx[from] += dy[to] / pixels; });
  return dx;
}

Array adaptive_avg_pool2d(const Array& x, std::int64_t height, std::int64_t width) {
  Array y({x.shape[0], x.shape[1], height, width});
  for_each_adaptive(x.shape, y.shape,
                    [&](std::int64_t to, std::int64_t from, double pixels) { y[to] += x[from] / pixels; });
  return y;
}

Array adaptive_avg_pool2d_backward(const Array& x, const Array& dy) {
  Array dx(x.shape);
  for_each_adaptive(x.shape, dy.shape,
                    [&](std::int64_t to, std::int64_t from, double pixels) { dx[from] += dy[to] / pixels; });
  return dx;
}

}  // namespace duet_test::reference
