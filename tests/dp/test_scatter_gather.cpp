#include <algorithm>
#include <any>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "dp/scatter_gather.h"
#include "lib/backend/backend.h"
#include "lib/ops/ops.h"
#include "lib/tensor.h"
#include "tests/support/catch2.h"

using namespace duet;
using dp::Split;

namespace {

std::vector<std::int64_t> sizes(std::int64_t n, int k, Split split = Split::chunk) {
  const auto pieces = dp::cut_rows(n, k, split).sizes;
  return {pieces.begin(), pieces.end()};
}

using Sizes = std::vector<std::int64_t>;

Tensor counting(const Shape& shape) {
  Tensor tensor = empty(shape);
  std::iota(tensor.span<float>().begin(), tensor.span<float>().end(), 0.0f);
  return tensor;
}

}  // namespace

TEST_CASE("piece sizes are those of PyTorch's chunk") {
  CHECK(sizes(30, 8) == Sizes{4, 4, 4, 4, 4, 4, 4, 2});
  CHECK(sizes(10, 5) == Sizes{2, 2, 2, 2, 2});
  CHECK(sizes(16, 4) == Sizes{4, 4, 4, 4});
  CHECK(sizes(7, 3) == Sizes{3, 3, 1});
  CHECK(sizes(30, 2) == Sizes{15, 15});
  CHECK(sizes(10, 2) == Sizes{5, 5});
  CHECK(sizes(30, 4) == Sizes{8, 8, 8, 6});
  CHECK(sizes(100, 8) == Sizes{13, 13, 13, 13, 13, 13, 13, 9});
  CHECK(sizes(9, 8) == Sizes{2, 2, 2, 2, 1});
  CHECK(sizes(17, 16) == Sizes{2, 2, 2, 2, 2, 2, 2, 2, 1});
  CHECK(sizes(12, 5) == Sizes{3, 3, 3, 3});
  CHECK(sizes(6, 4) == Sizes{2, 2, 2});
  CHECK(sizes(5, 4) == Sizes{2, 2, 1});
  CHECK(sizes(3, 8) == Sizes{1, 1, 1});
  CHECK(sizes(1, 8) == Sizes{1});
  CHECK(sizes(0, 4) == Sizes{0, 0, 0, 0});
}

TEST_CASE("blocked pieces are whole blocks of the global batch") {
  CHECK(sizes(100, 8, Split::blocked) == Sizes{12, 13, 12, 13, 12, 13, 12, 13});
  CHECK(sizes(100, 4, Split::blocked) == Sizes{25, 25, 25, 25});
  CHECK(sizes(3, 4, Split::blocked) == Sizes{0, 1, 1, 1});
}

TEST_CASE("a device that owns several subtrees of the blocks has a piece for each that has rows") {
  const Rows whole{.global = 100, .owned = true};
  const auto cut = dp::cut_rows(100, 3, Split::blocked, whole);
  CHECK(cut.sizes == PooledVector<std::int64_t>{25, 25, 12, 13, 25});
  CHECK(cut.devices == PooledVector<int>{0, 1, 1, 2, 2});
  CHECK(cut.subtrees == PooledVector<Subtree>{{0, 2}, {2, 2}, {4, 1}, {5, 1}, {6, 2}});
  CHECK(dp::cut_rows(100, 4, Split::blocked, whole).subtrees.empty());
  CHECK(dp::cut_rows(100, 12, Split::blocked, whole).subtrees.empty());  // more devices than blocks
  CHECK(dp::cut_rows(100, 12, Split::blocked, {.global = 100, .blocks = 16, .owned = true}).sizes.size() == 12);
  CHECK(dp::cut_rows(100, 3, Split::blocked, {.global = 100}).subtrees.empty());  // no owners
  const auto few = dp::cut_rows(2, 3, Split::blocked, {.global = 2, .owned = true});
  CHECK(few.sizes == PooledVector<std::int64_t>{1, 1});
  CHECK(few.subtrees == PooledVector<Subtree>{{2, 2}, {6, 2}});
  CHECK(few.devices == PooledVector<int>{1, 2});
  // Of ranks, each with its own blocks; rank 1 of 3 has blocks 2 to 5.
  const Rows owned{.first = 25, .global = 100, .shards = 3, .owned = true};
  CHECK(dp::cut_rows(37, 1, Split::blocked, owned).subtrees == PooledVector<Subtree>{{2, 2}, {4, 1}});
  CHECK(dp::cut_rows(37, 2, Split::blocked, owned).subtrees == PooledVector<Subtree>{{2, 2}, {4, 1}});
  CHECK(dp::cut_rows(37, 2, Split::blocked, owned).devices == PooledVector<int>{0, 1});
}

TEST_CASE("pieces of a rank's shard, and of parts of it, are those of a cut for all ranks' devices") {
  const auto cut = [](std::int64_t n, int k, const Rows& stamp) {
    const auto pieces = dp::cut_rows(n, k, Split::blocked, stamp).sizes;
    return Sizes(pieces.begin(), pieces.end());
  };
  for (const std::int64_t global : {100, 27, 8, 5, 2})
    for (const auto& [ranks, devices] : {std::pair(1, 8), std::pair(2, 4), std::pair(4, 2), std::pair(3, 2)})
      for (const int parts : {1, 2}) {                 // micro-batches
        if (parts == 2 && global < kBlocks) continue;  // the same rows are several parts
        const Sizes all = sizes(global, ranks * parts * devices, Split::blocked);
        for (std::int64_t part = 0; part < ranks * parts; ++part) {
          const std::int64_t first = block_begin(part, global, ranks * parts);
          const std::int64_t rows = block_begin(part + 1, global, ranks * parts) - first;
          CAPTURE(global, ranks, devices, parts, part);
          const auto own = all.begin() + static_cast<std::ptrdiff_t>(part * devices);
          CHECK(cut(rows, devices, {.first = first, .global = global, .shards = ranks}) == Sizes(own, own + devices));
        }
      }
  CHECK(cut(6, 4, {.first = 1, .global = 27}) == Sizes{1, 2, 1, 2});  // no such part: a batch of its own
}

TEST_CASE("scattered rows come back in order, on either dimension") {
  const auto devices = first_devices(DeviceKind::cpu, 3);
  for (const int dim : {0, 1}) {
    const Variable x(counting({5, 7, 2}), true);
    const auto cut = dp::cut_rows(x.shape()[dim], 3, Split::chunk).sizes;
    const auto pieces = dp::scatter(x, devices, cut, dim);
    REQUIRE(pieces.size() == cut.size());
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      CHECK(pieces[i].shape()[dim] == cut[i]);
      CHECK(pieces[i].device() == devices[i]);
    }
    const Variable whole = dp::gather(pieces, devices[0], dim);
    CHECK(whole.shape() == x.shape());
    const auto a = whole.value().span<float>(), b = x.value().span<float>();
    CHECK(std::equal(a.begin(), a.end(), b.begin()));
    // The gradient goes the same way back.
    whole.backward(counting({5, 7, 2}));
    const Tensor gradient = x.grad();
    const auto g = gradient.span<float>();
    CHECK(std::equal(g.begin(), g.end(), b.begin()));
  }
}

TEST_CASE("scatter names what does not fit") {
  const auto devices = first_devices(DeviceKind::cpu, 2);
  const Variable x(counting({5, 2}));
  const std::vector<std::int64_t> wrong = {2, 2};
  CHECK_THROWS_WITH(dp::scatter(x, devices, wrong), duet_test::ContainsSubstring("sum is 4, but expected 5"));
  const nn::Value uneven = nn::Dict{{"a", nn::Value(counting({4, 2}))}, {"b", nn::Value(counting({5, 2}))}};
  CHECK_THROWS_WITH(dp::scatter(uneven, devices),
                    duet_test::ContainsSubstring("input.b has 5 rows, but input.a has 4"));
}

TEST_CASE("nested values are scattered, anything else goes to every device") {
  const auto devices = first_devices(DeviceKind::cpu, 2);
  const nn::Value value = nn::List{nn::Value(counting({4, 2})), nn::Dict{{"k", nn::Value(counting({4}))}},
                                   nn::Value::opaque(std::string("same")), nn::List{}};
  const auto pieces = dp::scatter(value, devices);
  REQUIRE(pieces.size() == 2);
  for (const nn::Value& piece : pieces) {
    CHECK(piece.list()[0].variable().shape() == Shape{2, 2});
    CHECK(piece.list()[1].dict()[0].second.variable().shape() == Shape{2});
    CHECK(std::any_cast<std::string>(piece.list()[2].object()) == "same");
    CHECK(piece.list()[3].list().empty());
  }
  const nn::Value whole = dp::gather(pieces, devices[0]);
  CHECK(whole.list()[0].variable().shape() == Shape{4, 2});
}

TEST_CASE("a gathered batch has the stamp of the first piece with rows") {
  const Rows stamp{.step = 3, .global = 2};
  const std::vector<Variable> pieces = {Variable(counting({0, 2})), Variable(counting({2, 2}).set_stamp(stamp))};
  CHECK(dp::gather(pieces, Device{}).value().stamp() == stamp);
}

TEST_CASE("gathered scalars become a vector, and what does not fit is named") {
  const std::vector<Variable> scalars = {Variable(counting({})), Variable(counting({}))};
  CHECK(dp::gather(scalars, Device{}).shape() == Shape{2});
  const std::vector<Variable> unequal = {Variable(counting({2, 3})), Variable(counting({2, 4}))};
  CHECK_THROWS_AS(dp::gather(unequal, Device{}), ShapeError);
  CHECK_THROWS_AS(dp::gather(std::vector<Variable>{}, Device{}), ShapeError);
}

TEST_CASE("blocked layouts are gathered and scattered by their elements, and so are gradients") {
  const auto devices = first_devices(DeviceKind::cpu, 2);
  for (const int dim : {0, 1}) {
    const Variable x(counting({2, 32, 2, 3}), true);
    const Variable blocked = ops::to_layout(x, Layout::blocked16);
    const std::vector<std::int64_t> halves{x.shape()[dim] / 2, x.shape()[dim] / 2};
    const auto pieces = dp::scatter(blocked, devices, halves, dim);
    std::vector<Variable> turned;
    for (const Variable& piece : pieces) turned.push_back(ops::to_layout(piece, Layout::blocked16));
    const Variable whole = dp::gather(turned, devices[0], dim);
    const auto same = [&](const Tensor& tensor) {
      const Tensor plain = in_layout(tensor, Layout::plain);
      return std::ranges::equal(plain.span<float>(), x.value().span<float>());
    };
    CHECK(same(whole.value()));
    whole.backward(counting({2, 32, 2, 3}));
    CHECK(same(x.grad()));
  }
}
