// Tensors that are copied by name between a state and a model.
#include <string>
#include <vector>

#include "lib/error.h"
#include "lib/tensor.h"
#include "tests/support/catch2.h"

using duet_test::ContainsSubstring;

namespace {

using Names = std::vector<std::string>;

duet::NamedTensor one(const std::string& name, float value) { return {name, duet::from_values<float>({1}, {value})}; }

float value_of(const duet::NamedTensors& all, std::size_t i) { return all[i].tensor.data<float>()[0]; }

}  // namespace

TEST_CASE("tensors are copied by name, or the first difference is named and nothing is copied") {
  const duet::NamedTensors from = {{"a", duet::from_values<float>({2}, {1, 2})},
                                   {"b", duet::from_values<float>({1}, {3})}};
  duet::NamedTensors into = {{"b", duet::zeros({1})}, {"a", duet::zeros({2})}};
  duet::copy_by_name(from, into, "file");
  CHECK(into[0].tensor.data<float>()[0] == 3);
  CHECK(into[1].tensor.data<float>()[1] == 2);

  const duet::NamedTensors wrapped = {{"module.a", from[0].tensor}, {"module.b", from[1].tensor}};
  CHECK_NOTHROW(duet::copy_by_name(wrapped, into, "file"));

  duet::NamedTensors other = {{"b", duet::zeros({1})}, {"a", duet::zeros({3})}};
  CHECK_THROWS_WITH(duet::copy_by_name(from, other, "file"),
                    ContainsSubstring("file is of another model: \"a\" is f32[2], expected f32[3]"));
  CHECK(other[0].tensor.data<float>()[0] == 0);
  CHECK_THROWS_WITH(duet::copy_by_name(from, {{"a", duet::zeros({2}, duet::DType::i32)}, into[0]}, "file"),
                    ContainsSubstring("expected i32[2]"));
  CHECK_THROWS_WITH(duet::copy_by_name(from, {{"c", duet::zeros({2})}}, "file"), ContainsSubstring("no tensor \"c\""));
  CHECK_THROWS_WITH(duet::copy_by_name(from, {{"a", duet::zeros({2})}}, "file"),
                    ContainsSubstring("the tensor \"b\" that this one lacks"));
}

TEST_CASE("names are compared without the wrappers in them") {
  CHECK(duet::without_wrappers("module.features.module.0.weight") == "features.0.weight");
  CHECK(duet::without_wrappers("module.module.a") == "a");
  CHECK(duet::without_wrappers("submodule.a.modules") == "submodule.a.modules");
  const duet::NamedTensors from = {one("features.module.0", 1), one("fc", 2)};
  const duet::NamedTensors plain = {one("fc", 0), one("features.0", 0)};
  const duet::NamedTensors wrapped = {one("module.features.0", 0), one("module.fc", 0)};
  duet::copy_by_name(from, plain, "file");
  CHECK(value_of(plain, 0) == 2);
  CHECK(value_of(plain, 1) == 1);
  duet::copy_by_name(from, wrapped, "file");
  CHECK(value_of(wrapped, 0) == 1);
  CHECK(value_of(wrapped, 1) == 2);
  CHECK_THROWS_WITH(duet::copy_by_name(from, {one("features.module.0", 0), one("module.gc", 0)}, "file"),
                    "file is of another model: it has no tensor \"module.gc\"");
}

TEST_CASE("names that differ by wrappers only are compared whole") {
  const duet::NamedTensors from = {one("a", 1), one("module.a", 2)};
  const duet::NamedTensors into = {one("module.a", 0), one("a", 0)};
  duet::copy_by_name(from, into, "file");
  CHECK(value_of(into, 0) == 2);
  CHECK(value_of(into, 1) == 1);
  CHECK_THROWS_WITH(duet::copy_by_name({one("module.a", 1)}, into, "file"),
                    "file is of another model: it has no tensor \"a\"; one of the two has names that differ by "
                    "\"module.\" only, so names must be equal");
}

TEST_CASE("what fits is copied, and the names of the rest are returned") {
  const duet::NamedTensors from = {one("module.a", 1), {"module.b", duet::zeros({2})}, one("module.c", 3)};
  const duet::NamedTensors into = {one("a", 0), one("b", 7), one("d", 8), {"c", duet::zeros({1}, duet::DType::i32)}};
  const duet::LeftOut left = duet::copy_what_fits(from, into);
  CHECK(left.kept == Names{"b", "d", "c"});
  CHECK(left.unused == Names{"module.b", "module.c"});
  CHECK(value_of(into, 0) == 1);
  CHECK(value_of(into, 1) == 7);
}
