#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/ptx/cases.h"
#include "tests/support/catch2.h"

namespace {

using namespace ptx_cases;
namespace kernels = duet::cuda::kernels;

/// Offsets of the parts: all 0, 1, 3 or 4, or one after the other.
enum class Layout { zero, one, mixed, three, in_place };

std::vector<Floats> make_parts(Case& c, int parts, std::size_t count, Layout layout) {
  std::vector<Floats> made;
  for (int i = 0; i < parts; ++i)
    made.push_back(c.normal("part", count, layout == Layout::mixed ? i % 4 : static_cast<int>(layout)));
  return made;
}

kernels::Parts pointers(const std::vector<Floats>& arrays) {
  kernels::Parts parts{};
  for (std::size_t i = 0; i < arrays.size(); ++i) parts.at[i] = arrays[i].data();
  return parts;
}

Expected sum_at(const std::vector<Floats>& parts, std::size_t i) {
  Expected sum;
  for (const Floats& part : parts) sum.add(part.first(i));
  return sum;
}

void sum_parts_case(int parts, std::int64_t n, Layout layout) {
  const bool accumulate = layout == Layout::one;
  Case c("sum_parts", {parts, n, static_cast<int>(layout)});
  const std::size_t count = size_of(n);
  const std::vector<Floats> from = make_parts(c, parts, count, layout);
  const Floats y = layout == Layout::in_place ? from[0] : accumulate ? c.normal("y", count, 1) : c.output("y", count);
  c.run([&] { kernels::sum_parts(pointers(from), parts, accumulate, y.data(), n, nullptr); });
  for (std::size_t i = 0; i < count; ++i) {
    Expected sum = sum_at(from, i);
    if (accumulate) sum.add(y.first(i));
    c.expect("y", i, y[i], sum, parts + 1);
  }
}

void all_reduce_case(int parts, std::int64_t n, Layout layout) {
  Case c("all_reduce", {parts, n, static_cast<int>(layout)});
  const std::size_t count = size_of(n);
  const std::vector<Floats> from = make_parts(c, parts, count, layout);
  std::vector<Floats> to;
  kernels::Sums sums{};
  for (int i = 0; i < parts; ++i) {
    const int offset = layout == Layout::mixed ? (i + 1) % 4 : static_cast<int>(layout);
    to.push_back(layout == Layout::in_place ? from[size_of(i)] : c.output("sum", count, offset));
    sums.at[i] = to.back().data();
  }
  c.run([&] { kernels::all_reduce(pointers(from), sums, parts, n, nullptr); });
  for (std::size_t i = 0; i < count; ++i)
    for (const Floats& sum : to) c.expect("sum", i, sum[i], sum_at(from, i), parts + 1);
}

}  // namespace

TEST_CASE("ptx: sums over devices") {
  for (const int parts : {1, 2, 3, 4, 5, 7, 8, 16, 32, 64})
    for (const std::int64_t n : {0, 1, 3, 5, 255, 1001, 20001}) {
      for (const Layout layout : {Layout::zero, Layout::one, Layout::in_place}) sum_parts_case(parts, n, layout);
      for (const Layout layout : {Layout::zero, Layout::one, Layout::mixed, Layout::three, Layout::in_place})
        all_reduce_case(parts, n, layout);
    }
  check_launched({"sum_parts_kernel", "all_reduce_kernel"});
}
