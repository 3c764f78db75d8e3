// Drawn cases of the operators, forward and backward, against PyTorch: torch_operators.py computes them again.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <vector>

#include "lib/autograd/variable.h"
#include "lib/error.h"
#include "lib/io/safetensors.h"
#include "lib/ops/losses.h"
#include "lib/ops/ops.h"
#include "lib/random.h"
#include "lib/tensor.h"
#include "tests/ops/check.h"
#include "tests/ops/operator_cases.h"
#include "tests/support/catch2.h"
#include "tests/support/number_of.h"
#include "tests/support/python.h"
#include "tests/support/scratch.h"

using namespace duet;
using namespace duet_test;

namespace {

/// Draws one case, runs it, and keeps what PyTorch needs to run it again.
class Case {
 public:
  Case(std::uint64_t seed, NamedTensors& tensors)
      : generator(seed), prefix_(std::to_string(seed) + "."), tensors_(tensors), special_(chance(3)) {}
  /// "operator numbers|view of the first argument|..."
  const std::string& text() const { return text_; }

  std::int64_t below(std::int64_t end) { return generator.randint(0, end); }
  bool chance(std::int64_t of) { return below(of) == 0; }

  /// Numbers that say which operator runs, and how.
  template <class... Numbers>
  void name(const std::string& op, Numbers... numbers) {
    text_ = op + text_;
    std::string all;
    ((all += " " + std::to_string(numbers)), ...);
    text_.insert(op.size(), all);
  }

  /// An argument of this shape, which may be a transposed or a cut leaf. `large`: numbers at the ends of float, too.
  Variable input(const Shape& shape, bool large = false) {
    const int rank = shape.rank();
    if (rank >= 2 && chance(4)) {
      const int a = static_cast<int>(below(rank)), b = static_cast<int>(below(rank));
      const Tensor x = numbers(shape.with(a, shape[b]).with(b, shape[a]), special_, large);
      return ops::transpose(leaf(x, concat("t ", a, " ", b)), a, b);
    }
    if (rank >= 1 && chance(4)) {
      const int d = static_cast<int>(below(rank));
      const std::int64_t begin = below(3), end = begin + shape[d];
      const Tensor x = numbers(shape.with(d, end + below(3)), special_, large);
      return ops::slice(leaf(x, concat("s ", d, " ", begin, " ", end)), d, begin, end);
    }
    return leaf(numbers(shape, special_, large));
  }
  /// A leaf, of which PyTorch takes this view.
  Variable leaf(const Tensor& x, const std::string& view = "-") {
    text_ += "|" + view;
    leaves_.emplace_back(x, true);
    keep("input", leaves_.size() - 1, x);
    return leaves_.back();
  }
  /// From 0 to 1, both ends among them.
  Tensor probabilities(const Shape& shape) {
    const Tensor x = empty(shape);
    generator.uniform(x.span<float>(), 0, 1);
    for (float& value : x.span<float>())
      if (chance(10)) value = static_cast<float>(below(2));
    return x;
  }
  Tensor constant(const Tensor& x) {
    keep("constant", 0, x);
    return x;
  }
  Tensor indices(const Shape& shape, std::int64_t end) {
    const Tensor x = empty(shape, DType::i64);
    for (std::int64_t& index : x.span<std::int64_t>()) index = below(end);
    return constant(x);
  }
  Tensor numbers(const Shape& shape, bool special, bool large) {
    constexpr float kSpecial[] = {kNan, kInfinity, -kInfinity, 0.0f, -0.0f, 1e-40f, 3e38f, -3e38f, 1e-30f, 100.0f};
    const Tensor x = empty(shape);
    generator.randn(x.span<float>());
    const float scale = chance(4) ? 20.0f : 1.0f;
    for (float& value : x.span<float>()) value *= scale;
    if (!special) return x;
    for (float& value : x.span<float>())
      if (chance(5)) value = kSpecial[below(large ? 10 : 5)];
    return x;
  }
  /// Only finite numbers from now on.
  void finite() { special_ = false; }

  void finish(const Variable& result) {
    const Variable y = ops::to_plain(result);
    keep("y", 0, y.value());
    const Tensor dy = numbers(y.shape(), special_ && chance(2), false);
    keep("dy", 0, dy);
    y.backward(dy);
    for (std::size_t i = 0; i < leaves_.size(); ++i)
      if (leaves_[i].grad().defined()) keep("gradient", i, leaves_[i].grad());
  }

  Mt19937 generator;

 private:
  void keep(const std::string& what, std::size_t number, const Tensor& x) {
    tensors_.push_back({prefix_ + what + std::to_string(number), x});
  }

  std::string prefix_, text_;
  NamedTensors& tensors_;
  std::vector<Variable> leaves_;
  bool special_;
};

/// The shapes with another size in a dimension, so that rows fill vectors, too, or are empty.
std::vector<Shape> some_long(Case& c, std::vector<Shape> shapes) {
  int rank = Shape::kMaxRank;
  for (const Shape& shape : shapes) rank = std::min(rank, shape.rank());
  if (rank == 0 || !c.chance(3)) return shapes;
  const int d = -1 - static_cast<int>(c.below(rank));
  const std::int64_t size = c.chance(6) ? 0 : 1 + c.below(100);
  const bool all = std::all_of(shapes.begin(), shapes.end(), [d](const Shape& shape) { return shape[d] == 1; });
  for (Shape& shape : shapes)
    if (all || shape[d] > 1) shape = shape.with(d, size);
  return shapes;
}

Shape drawn_shape(Case& c, std::int64_t least) { return some_long(c, {random_shape(c.generator, least, 5)})[0]; }

Shape appended(Shape shape, std::initializer_list<std::int64_t> sizes) {
  for (const std::int64_t size : sizes) shape.append(size);
  return shape;
}

Variable arithmetic(Case& c) {
  const std::int64_t op = c.below(4), side = c.below(6);
  const auto run = [&](const ops::Operand& a, const ops::Operand& b) {
    return op == 0 ? ops::add(a, b) : op == 1 ? ops::sub(a, b) : op == 2 ? ops::mul(a, b) : ops::div(a, b);
  };
  const std::vector<Shape> shapes = some_long(c, random_pair(c.generator));
  if (side > 1) {
    const Variable a = c.input(shapes[0], true), b = side == 2 ? a : c.input(shapes[1], true);
    c.name("arithmetic", op, side);
    return run(a, b);
  }
  const double number = static_cast<double>(c.below(9)) / 4 - 1;
  const Variable x = c.input(shapes[0], true);
  c.name("arithmetic", op, side, number);
  return side == 0 ? run(x, number) : run(number, x);
}

Variable function(Case& c) {
  constexpr const char* kNames[] = {"exp", "log", "sqrt", "sigmoid", "tanh", "gelu", "leaky_relu", "relu"};
  const std::int64_t op = c.below(8);
  const Variable x = c.input(drawn_shape(c, 0), true);
  c.name(kNames[op]);
  switch (op) {
    case 0: return ops::exp(x);
    case 1: return ops::log(x);
    case 2: return ops::sqrt(x);
    case 3: return ops::sigmoid(x);
    case 4: return ops::tanh(x);
    case 5: return ops::gelu(x);
    case 6: return ops::leaky_relu(x);
    default: return ops::relu(x);
  }
}

Variable reduction(Case& c) {
  const Variable x = c.input(drawn_shape(c, 0));
  const bool mean = c.chance(2), keepdim = c.chance(2);
  std::vector<int> dims;
  for (int d = 0; d < x.shape().rank(); ++d)
    if (c.chance(2)) dims.push_back(c.chance(2) ? d : d - x.shape().rank());
  std::string all;
  for (const int d : dims) all += " " + std::to_string(d);
  c.name((mean ? "mean" : "sum") + std::string(keepdim ? " 1" : " 0") + all);
  return mean ? ops::mean(x, dims, keepdim) : ops::sum(x, dims, keepdim);
}

Variable shape_of_another(Case& c) {
  const Shape shape = drawn_shape(c, 1);
  const Variable x = c.input(shape);
  const std::int64_t rank = shape.rank(), a = c.below(rank), b = c.below(rank) - rank;
  switch (c.below(5)) {
    case 0: c.name("reshape", shape[0], shape.count_from(1)); return ops::reshape(x, {shape[0], shape.count_from(1)});
    case 1: c.name("reshape", 1, shape.count(), 1); return ops::reshape(x, {1, shape.count(), 1});
    case 2: c.name("flatten"); return ops::flatten(x);
    case 3: c.name("transpose", a, b); return ops::transpose(x, static_cast<int>(a), static_cast<int>(b));
    default: {
      const std::int64_t begin = c.below(shape[static_cast<int>(b)] + 1);
      const std::int64_t end = begin + c.below(shape[static_cast<int>(b)] - begin + 1);
      c.name("slice", b, begin, end);
      return ops::slice(x, static_cast<int>(b), begin, end);
    }
  }
}

Variable concatenation(Case& c) {
  const Shape shape = drawn_shape(c, 2);
  std::vector<Variable> parts;
  for (std::int64_t left = 1 + c.below(3); left > 0; --left) parts.push_back(c.input(shape.with(1, c.below(4))));
  c.name("concat");
  return ops::concat(parts);
}

Variable products(Case& c) {
  const auto size = [&] { return c.chance(20) ? 0 : 1 + c.below(c.chance(8) ? 70 : 9); };
  const std::int64_t m = size(), k = size(), p = size();
  const Shape front = random_shape(c.generator, 0, 3);
  if (c.chance(3)) {
    const Variable x = c.input({m, k}), w = c.input({p, k});
    const Variable b = c.chance(2) ? c.input({p}) : Variable();
    c.name("linear");
    return ops::linear(x, w, b);
  }
  const Variable a = c.input(appended(front, {m, k})), b = c.input(c.chance(2) ? Shape{k, p} : appended(front, {k, p}));
  c.name("matmul");
  return ops::matmul(a, b);
}

Variable softmaxes(Case& c) {
  const Shape shape = drawn_shape(c, 2);
  const Variable x = c.input(shape);
  const int dimension = static_cast<int>(c.below(2 * shape.rank())) - shape.rank();
  const bool log = c.chance(2);
  c.name(log ? "log_softmax" : "softmax", dimension);
  return log ? ops::log_softmax(x, dimension) : ops::softmax(x, dimension);
}

Variable element_loss(Case& c) {
  const Shape shape = drawn_shape(c, 1);
  const std::int64_t op = c.below(5);
  const Variable x = op == 2 ? c.leaf(c.probabilities(shape)) : c.input(shape);
  if (op == 4) {
    c.name("batch_mean");
    return ops::batch_mean(x);
  }
  const Tensor target = c.constant(op < 2 ? c.numbers(shape, false, false) : c.probabilities(shape));
  constexpr const char* kNames[] = {"l1_loss", "mse_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits"};
  c.name(kNames[op]);
  switch (op) {
    case 0: return ops::l1_loss(x, target);
    case 1: return ops::mse_loss(x, target);
    case 2: return ops::binary_cross_entropy(x, target);
    default: return ops::binary_cross_entropy_with_logits(x, target);
  }
}

Variable class_loss(Case& c) {
  const Shape front = random_shape(c.generator, 1, 4);
  const std::int64_t classes = 1 + c.below(12);
  const Variable x = c.input(appended(front, {classes}));
  const Tensor labels = c.indices(front, classes);
  if (c.chance(2)) {
    c.name("nll_loss");
    return ops::nll_loss(x, labels);
  }
  const double smoothing = c.chance(2) ? 0 : static_cast<double>(1 + c.below(3)) / 4;
  c.name("cross_entropy", smoothing);
  return ops::cross_entropy(x, labels, smoothing);
}

Variable convolution(Case& c) {
  const bool transposed = !c.chance(3);
  const std::int64_t groups = c.chance(3) ? 2 : 1, stride = 1 + c.below(3), kernel = 1 + c.below(4);
  const std::int64_t padding = c.below(kernel), output_padding = transposed ? c.below(stride) : 0;
  const auto channels = [&] { return groups * (c.chance(4) ? 8 * (1 + c.below(2)) : 1 + c.below(5)); };
  const std::int64_t in = channels(), out = channels();
  // What meets the padding is finite: libraries that multiply by its zeros make NaN of other numbers.
  if (transposed && padding > 0) c.finite();
  const Variable x = c.input({c.chance(15) ? 0 : 1 + c.below(3), in, 4 + c.below(6), 4 + c.below(6)});
  c.finite();
  const Variable w =
      c.input(transposed ? Shape{in, out / groups, kernel, kernel} : Shape{out, in / groups, kernel, kernel});
  const Variable b = c.chance(3) ? Variable() : c.input({out});
  c.name(transposed ? "conv_transpose2d" : "conv2d", stride, padding, output_padding, groups);
  const Window2d window{kernel, kernel, stride, stride, padding, padding};
  return transposed ? ops::conv_transpose2d(x, w, b, window, output_padding, groups)
                    : ops::conv2d(x, w, b, window, groups);
}

Variable pool(Case& c) {
  const std::int64_t op = c.below(3), kernel = 1 + c.below(3), stride = 1 + c.below(3),
                     padding = c.below(kernel / 2 + 1);
  const Variable x = c.input({1 + c.below(3), 1 + c.below(9), 4 + c.below(6), 4 + c.below(6)});
  const Window2d window{kernel, kernel, stride, stride, padding, padding};
  if (op == 2) {
    const std::int64_t height = 1 + c.below(5), width = 1 + c.below(5);
    c.name("adaptive_avg_pool2d", height, width);
    return ops::adaptive_avg_pool2d(x, height, width);
  }
  const bool counts = c.chance(2);
  c.name(op == 0 ? "max_pool2d" : "avg_pool2d", kernel, stride, padding, counts);
  return op == 0 ? ops::max_pool2d(x, window) : ops::avg_pool2d(x, window, counts);
}

Variable layer_norm(Case& c) {
  const Shape front = random_shape(c.generator, 1, 3);
  Shape normalised;
  for (std::int64_t rank = 1 + c.below(2); rank > 0; --rank) normalised.append(1 + c.below(c.chance(6) ? 70 : 6));
  Shape shape = front;
  for (const std::int64_t size : normalised) shape.append(size);
  const Variable x = c.input(shape);
  const std::int64_t parameters = c.below(3);
  const Variable weight = parameters > 0 ? c.input(normalised) : Variable();
  const Variable bias = parameters > 1 ? c.input(normalised) : Variable();
  c.name("layer_norm", normalised.rank());
  return ops::layer_norm(x, normalised, weight, bias);
}

Variable embedding(Case& c) {
  const std::int64_t rows = 1 + c.below(9);
  const Variable table = c.input({rows, c.chance(20) ? 0 : 1 + c.below(20)});
  const Tensor indices = c.indices(random_shape(c.generator, 1, 4), rows);
  c.name("embedding");
  return ops::embedding(table, indices);
}

Variable attention(Case& c) {
  const Shape front = random_shape(c.generator, 1, 3);
  const std::int64_t t = 1 + c.below(7), s = 1 + c.below(7), d = 1 + c.below(9), e = 1 + c.below(9);
  const Variable query = c.input(appended(front, {t, d})), key = c.input(appended(front, {s, d})),
                 value = c.input(appended(front, {s, e}));
  const bool causal = c.chance(2);
  c.name("attention", causal);
  return ops::scaled_dot_product_attention(query, key, value, causal);
}

/// Draws a case of one of the operators, runs it, and returns its text.
std::string run_case(std::uint64_t seed, NamedTensors& tensors) {
  constexpr Variable (*kKinds[])(Case&) = {
      arithmetic,       arithmetic,    arithmetic, function,   function,  function,     reduction,    reduction,
      shape_of_another, concatenation, products,   products,   softmaxes, element_loss, element_loss, class_loss,
      convolution,      convolution,   pool,       layer_norm, embedding, attention};
  Case c(seed, tensors);
  const Variable y = kKinds[c.below(std::ssize(kKinds))](c);
  c.finish(y);
  return c.text();
}

}  // namespace

/// DUET_DRAWS=N draws as many cases, from seed DUET_DRAW_FROM on.
TEST_CASE("the operators give what PyTorch's do, in drawn cases") {
  if (!duet_test::python_has("safetensors.torch, torch; assert int(torch.__version__.split(\".\")[0]) >= 2"))
    DUET_SKIP("no Python with safetensors and torch 2 (DUET_PYTHON names one)");
  const std::uint64_t first = duet_test::number_of("DUET_DRAW_FROM", 1),
                      draws = duet_test::number_of("DUET_DRAWS", 1000);
  const duet_test::Scratch scratch;
  for (std::uint64_t begin = 0; begin < draws; begin += 500) {  // the header of a file has at most 1 MiB
    Metadata cases;
    NamedTensors tensors;
    for (std::uint64_t seed = first + begin; seed < first + std::min(draws, begin + 500); ++seed) {
      INFO("DUET_DRAWS=1 DUET_DRAW_FROM=" << seed);
      CHECK_NOTHROW(cases[std::to_string(seed)] = run_case(seed, tensors));
    }
    save_tensors(scratch.path("cases" + std::to_string(begin)), tensors, cases);
  }
  const std::string script = std::string(std::getenv("DUET_SOURCE_ROOT")) + "/tests/ops/torch_operators.py";
  CHECK(duet_test::run_python_file(script, scratch.folder()));
}
