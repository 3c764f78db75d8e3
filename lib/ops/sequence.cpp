// Operators of sequence models: embedding; layer_norm and attention, which are made of other operators for backends
// that don't have them.
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "lib/base/recovery.h"
#include "lib/ops/ops.h"
#include "lib/ops/record.h"

namespace duet::ops {
namespace {

struct EmbeddingGradient {
  static constexpr const char* kName = "embedding";
  static constexpr bool kReadsRows = true;
  void backward(const Gradients& g) const {
    Tensor dy = g.outputs[0];
    dy.set_stamp(indices.stamp());
    backend(dy).sum_gathered_rows(dy, indices, g.place(0, table, dy.device()));
  }
  auto saved() const { return std::tie(indices); }
  SavedTensor indices;
  Shape table;
};

/// x with its last `rank` dimensions as one.
Tensor joined(const Tensor& x, int rank) {
  if (!x.defined() || rank == 1) return x;
  Shape shape;
  for (int d = 0; d < x.shape().rank() - rank; ++d) shape.append(x.size(d));
  shape.append(x.shape().count_from(x.shape().rank() - rank));
  return x.reshape(shape);
}

struct LayerNormGradient {
  static constexpr const char* kName = "layer_norm";
  void backward(const Gradients& g) const {
    const auto place = [&](std::size_t i, const Shape& shape) {
      return g.wanted(i) ? g.place(i, shape, x.device()) : Tensor();
    };
    const Tensor dx = place(0, x.shape()), dweight = place(1, normalised), dbias = place(2, normalised);
    const int rank = normalised.rank();
    backend(x).layer_norm_backward(joined(x, rank), joined(weight, rank), joined(g.outputs[0], rank), eps,
                                   joined(dx, rank), joined(dweight, rank), joined(dbias, rank));
  }
  auto saved() const { return std::tie(x, weight); }
  SavedTensor x, weight;
  Shape normalised;
  float eps = 0;
};

struct AttentionGradient {
  static constexpr const char* kName = "scaled_dot_product_attention";
  void backward(const Gradients& g) const {
    const auto place = [&](std::size_t i, const Tensor& x) {
      return g.wanted(i) ? g.place(i, x.shape(), x.device()) : empty(x.shape(), DType::f32, x.device());
    };
    backend(q).attention_backward(g.outputs[0], q, k, v, causal, weights, place(0, q), place(1, k), place(2, v));
  }
  auto saved() const { return std::tie(q, k, v, weights); }
  SavedTensor q, k, v, weights;
  bool causal;
};

/// Whether the samples of a batch lie in dimension 0 of all three, or of none.
bool share_samples(const Variable& query, const Variable& key, const Variable& value) {
  const Rows stamp = query.value().stamp();
  return stamp.outer == 0 && key.value().stamp() == stamp && value.value().stamp() == stamp;
}

/// What is added to the scores of (T, S) queries and keys: -infinity where a key comes behind its query.
Tensor causal_mask(std::int64_t queries, std::int64_t keys, Device device) {
  std::vector<float> mask(static_cast<std::size_t>(queries * keys));
  for (std::int64_t i = 0; i < queries; ++i)
    for (std::int64_t j = i + 1; j < keys; ++j)
      mask[static_cast<std::size_t>(i * keys + j)] = -std::numeric_limits<float>::infinity();
  return from_values({queries, keys}, mask).to(device);
}

}  // namespace

Variable embedding(const Variable& rows, const Tensor& places) {
  constexpr const char* kOp = EmbeddingGradient::kName;
  require_rank(kOp, rows, 2, "(V, C)");
  const Tensor indices = places.defined() ? on(rows.device(), places) : places;
  require<ShapeError>(indices.defined() && indices.dtype() == DType::i64 && indices.shape().rank() >= 1, kOp,
                      ": got indices ", ShapeText{indices.defined() ? Variable(indices) : Variable()},
                      indices.defined() ? name(indices.dtype()) : "", ", expected (N, ...) i64");
  const Variable table = on(indices.device(), rows);
  require<DeviceError>(indices.device() == table.device(), kOp, ": table on ", table.device(), ", indices on ",
                       indices.device(), ", expected one device: ", kMakeThere);
  static std::atomic<bool> said{false};
  const Rows& batch = table.value().stamp();
  if (batch.stamped() && batch.global > table.size(0) && !indices.stamp().known())
    report_dependence(said, [] {
      return std::string(
          "embedding picks rows of this device's part of the batch, and a mean over them divides by "
          "their number here: use ignore_index or a mask (docs/howto/ddp.md), or set_stamp() on indices "
          "of as many rows");
    });
  Shape shape = indices.shape();
  shape.append(table.size(1));
  Tensor y = empty(shape, DType::f32, table.device());
  y.set_stamp(indices.stamp());
  backend(y).gather_rows(table.value(), indices, y);
  return record(y, {&table}, [&] { return EmbeddingGradient{{indices, "indices"}, table.shape()}; });
}

Variable layer_norm(const Variable& input, const Shape& normalised, const Variable& weight, const Variable& bias,
                    double eps) {
  constexpr const char* kOp = LayerNormGradient::kName;
  require_floats(kOp, input);
  const Variable x = to_plain(input);
  const int rank = normalised.rank();
  bool fits = rank >= 1 && x.shape().rank() > rank;
  for (int d = 1; fits && d <= rank; ++d) fits = x.shape()[-d] == normalised[-d];
  require<ShapeError>(fits, kOp, ": got shape ", x.shape(), ", expected (N, ...) that ends in ", normalised);
  for (const Variable* const parameter : {&weight, &bias})
    require<ShapeError>(!parameter->defined() || parameter->shape() == normalised, kOp, ": parameter ",
                        ShapeText{*parameter}, ", expected ", normalised);
  if (backend(x.value()).has_layer_norm() && x.value().stamp().outer == 0) {
    if (const auto device = device_to_share(kOp, {&x, &weight, &bias}))
      return layer_norm(on(*device, x), normalised, on(*device, weight), on(*device, bias), eps);
    const Tensor y = result_of(x, x.shape());
    backend(y).layer_norm_forward(joined(x.value(), rank), joined(value_or_none(weight), rank),
                                  joined(value_or_none(bias), rank), static_cast<float>(eps), joined(y, rank));
    return record(y, {&x, &weight, &bias}, [&] {
      return LayerNormGradient{{x, "input"}, {weight, "weight"}, normalised, static_cast<float>(eps)};
    });
  }
  std::vector<int> dims;
  for (int d = 1; d <= rank; ++d) dims.push_back(-d);
  const Variable centred = x - mean(x, dims, true);
  const Variable y = centred / sqrt(mean(centred * centred, dims, true) + eps);
  const Variable scaled = weight.defined() ? y * weight : y;
  return bias.defined() ? scaled + bias : scaled;
}

Variable scaled_dot_product_attention(const Variable& query, const Variable& key, const Variable& value, bool causal) {
  constexpr const char* kOp = AttentionGradient::kName;
  for (const Variable* const x : {&query, &key, &value}) require_floats(kOp, *x);
  const int rank = query.shape().rank();
  const bool fits = rank >= 3 && key.shape().rank() == rank && value.shape().rank() == rank &&
                    query.size(-1) == key.size(-1) && key.size(-2) == value.size(-2);
  require<ShapeError>(fits, kOp, ": got shapes ", query.shape(), ", ", key.shape(), " and ", value.shape(),
                      ", expected (N, ..., T, D), (N, ..., S, D) and (N, ..., S, E)");
  if (const auto device = device_to_share(kOp, {&query, &key, &value}))
    return scaled_dot_product_attention(on(*device, query), on(*device, key), on(*device, value), causal);
  const Variable q = to_plain(query), k = to_plain(key), v = to_plain(value);
  bool same_heads = q.value().count() > 0 && v.value().count() > 0;
  for (int d = 0; d < rank - 2; ++d) same_heads = same_heads && q.size(d) == k.size(d) && q.size(d) == v.size(d);
  if (backend(q.value()).has_attention() && same_heads && share_samples(q, k, v)) {
    const Tensor y = result_of(q, q.shape().with(-1, v.size(-1)));
    const Tensor weights = empty(q.shape().with(-1, k.size(-2)), DType::f32, y.device());
    backend(y).attention_forward(q.value(), k.value(), v.value(), causal, weights, y);
    return record(y, {&q, &k, &v}, [&] {
      return AttentionGradient{{q, "query"}, {k, "key"}, {v, "value"}, {weights, "weights"}, causal};
    });
  }
  const double scale = 1 / std::sqrt(static_cast<double>(query.size(-1)));
  Variable scores = matmul(query * scale, transpose(key, -2, -1));
  if (causal) scores = scores + causal_mask(query.size(-2), key.size(-2), query.device());
  return matmul(softmax(scores, -1), value);
}

}  // namespace duet::ops
