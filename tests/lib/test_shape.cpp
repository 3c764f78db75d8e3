#include "lib/tensor.h"
#include "tests/support/catch2.h"

using namespace duet;

TEST_CASE("sizes, count and text of a shape") {
  const Shape shape{4, 1, 28, 28};
  CHECK(shape.count() == 3136);
  CHECK(shape[-1] == 28);
  CHECK(shape.str() == "[4, 1, 28, 28]");
  CHECK_THROWS_AS(shape[4], ShapeError);
  CHECK_THROWS_AS(Shape({-1}), ShapeError);
}

TEST_CASE("row slices share memory and narrow the stamp") {
  Tensor batch = from_values<float>({4, 2}, {0, 1, 2, 3, 4, 5, 6, 7});
  batch.set_stamp({7, 64, 128});
  const Tensor part = batch.rows(1, 3);
  CHECK(part.data<float>()[0] == 2);
  CHECK(part.stamp() == Rows{7, 65, 128});
  CHECK_THROWS_AS(batch.rows(3, 5), ShapeError);
}
