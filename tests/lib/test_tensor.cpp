#include <cstdint>
#include <numeric>
#include <vector>

#include "lib/tensor.h"
#include "tests/support/catch2.h"

using namespace duet;

namespace {

Tensor counted(const Shape& shape) {
  Tensor tensor = empty(shape);
  const auto values = tensor.span<float>();
  std::iota(values.begin(), values.end(), 0.0f);
  return tensor;
}

}  // namespace

TEST_CASE("a tensor gives its elements as its own dtype only") {
  const Tensor floats = zeros({2, 3}), longs = zeros({2}, DType::i64);
  CHECK(floats.bytes() == 24);
  CHECK(longs.bytes() == 16);
  CHECK(floats.data<float>()[5] == 0);
  CHECK_THROWS_AS(floats.data<double>(), ShapeError);
  CHECK_THROWS_WITH(longs.data<float>(), "tensor holds i64, asked for f32");
  CHECK(zeros({3}, DType::bf16).bytes() == 6);
  CHECK(from_values<Float16>({1}, {Float16(0.1f)}).span<Float16>()[0].bits == 0x2E66);
  CHECK_THROWS_WITH(zeros({1}, DType::f16).data<BFloat16>(), "tensor holds f16, asked for bf16");
  CHECK(zeros({3}, DType::u8).span<std::uint8_t>().size() == 3);
  CHECK(zeros({}, DType::f64).count() == 1);
  CHECK_FALSE(Tensor().defined());
}

TEST_CASE("views share memory, clones do not") {
  const Tensor whole = counted({4, 3});
  const Tensor middle = whole.rows(1, 3), row = whole.slice(6, {3}), flat = whole.reshape({12});
  middle.data<float>()[0] = 100;
  CHECK(flat.data<float>()[3] == 100);
  CHECK(row.data<float>()[0] == 6);
  CHECK(whole.rows(2, 3).same_memory(row));
  CHECK_FALSE(whole.same_memory(middle));
  const Tensor copy = whole.clone();
  copy.data<float>()[3] = 5;
  CHECK(whole.data<float>()[3] == 100);
  CHECK(whole.rows(4, 4).count() == 0);
}

TEST_CASE("memory is kept until its last view is destroyed, and then reused") {
  void* address = nullptr;
  {
    Tensor view;
    {
      const Tensor whole = counted({1000, 7});
      address = whole.raw();
      view = whole.rows(10, 20);
    }
    CHECK(view.data<float>()[0] == 70);
    CHECK(empty({1000, 7}).raw() != address);
  }
  const Tensor first = empty({1000, 7}), second = empty({1000, 7});
  CHECK((first.raw() == address || second.raw() == address));
}

TEST_CASE("views outside a tensor are refused") {
  const Tensor whole = counted({4, 3});
  CHECK_THROWS_AS(whole.rows(-1, 2), ShapeError);
  CHECK_THROWS_AS(whole.rows(3, 2), ShapeError);
  CHECK_THROWS_WITH(whole.rows(2, 5), "rows 2 to 5 asked of shape [4, 3]");
  CHECK_THROWS_AS(zeros({}).rows(0, 0), ShapeError);
  CHECK_THROWS_AS(whole.slice(10, {3}), ShapeError);
  CHECK_THROWS_AS(whole.slice(-1, {3}), ShapeError);
  CHECK_THROWS_WITH(whole.reshape({5}), "cannot view shape [4, 3] in layout plain as shape [5]");
  CHECK_THROWS_AS(empty({1, 8, 2, 2}, DType::f32, {}, Layout::blocked8).reshape({32}), ShapeError);
  CHECK_THROWS_AS(from_values<float>({2, 2}, {1, 2, 3}), ShapeError);
}

TEST_CASE("stamps follow rows, copies and views, and are lost with the rows") {
  Tensor batch = counted({4, 3});
  CHECK(batch.stamp_or_self() == Rows{0, 0, 4});
  batch.set_stamp({7, 64, 128});
  CHECK(batch.rows(1, 3).stamp() == Rows{7, 65, 128});
  CHECK(batch.rows(1, 3).rows(1, 2).stamp() == Rows{7, 66, 128});
  CHECK(batch.clone().stamp() == Rows{7, 64, 128});
  CHECK(batch.to({DeviceKind::cpu, 2}).stamp() == Rows{7, 64, 128});
  CHECK(batch.reshape({4, 3, 1}).stamp() == Rows{7, 64, 128});
  CHECK(batch.reshape({12}).stamp().per_sample == 3);
  CHECK_FALSE(batch.reshape({1, 12}).stamp().stamped());
  CHECK_FALSE(batch.rows(0, 1).slice(0, {}).stamp().known());
}

TEST_CASE("devices of the CPU share memory under their own names") {
  const Tensor here = counted({3});
  const Tensor there = here.alias({DeviceKind::cpu, 4}), moved = here.to({DeviceKind::cpu, 4});
  CHECK(there.device().str() == "cpu:4");
  CHECK(there.same_memory(here));
  CHECK_FALSE(moved.same_memory(here));
  CHECK(moved.data<float>()[2] == 2);
  CHECK(here.to({DeviceKind::cpu, 0}).same_memory(here));
  CHECK_THROWS_AS(here.alias({DeviceKind::cuda, 0}), DeviceError);
  CHECK_THROWS_AS(empty({1}, DType::f32, {DeviceKind::cuda, 0}), DeviceError);
}

TEST_CASE("copy requires the same shape, dtype and layout") {
  const Tensor source = counted({2, 2}), destination = zeros({2, 2});
  copy(source, destination);
  CHECK(destination.data<float>()[3] == 3);
  CHECK_THROWS_AS(copy(source, zeros({4})), ShapeError);
  CHECK_THROWS_WITH(copy(source, zeros({2, 2}, DType::f64)), "cannot copy [2, 2] f32 plain to [2, 2] f64 plain");
  std::vector<float> memory = {1, 2, 3, 4};
  const Tensor borrowed = borrow(memory.data(), {2, 2}, DType::f32);
  copy(source, borrowed);
  CHECK(memory == std::vector<float>{0, 1, 2, 3});
}

TEST_CASE("a shape replaces, appends and multiplies its sizes") {
  Shape shape = {4, 3, 2};
  CHECK(shape.with(1, 7) == Shape{4, 7, 2});
  CHECK(shape.with(-1, 5) == Shape{4, 3, 5});
  CHECK(shape.count_from(1) == 6);
  CHECK(shape.count_from(3) == 1);
  shape.append(9);
  CHECK(shape == Shape{4, 3, 2, 9});
  CHECK(Shape().count() == 1);
  CHECK(Shape().str() == "[]");
  CHECK(Shape{0, 5}.count() == 0);
  CHECK_FALSE(Shape{2, 3} == Shape{2, 3, 1});
  CHECK_THROWS_AS((Shape{1, 1, 1, 1, 1, 1, 1}), ShapeError);
  CHECK_THROWS_AS(shape.with(0, -1), ShapeError);
  CHECK_THROWS_AS(shape[-5], ShapeError);
}
