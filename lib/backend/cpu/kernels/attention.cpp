// Attention of one head. A few queries at a time, so that their scores stay in the second cache; keys that no query of
// such a group may see are left out.
#include <cstdint>

#include "lib/backend/cpu/kernels/isa.h"

namespace duet::cpu::DUET_ISA {
namespace {

/// Queries, or keys, that are computed together. Changes results of sequences longer than kProductChunk.
constexpr std::int64_t kGroup = 48;

std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

/// Calls f(begin, rows) for all of [0, n).
template <class F>
void for_each_group(std::int64_t n, F f) {
  for (std::int64_t begin = 0; begin < n; begin += kGroup) f(begin, smaller(kGroup, n - begin));
}

/// How many keys, from the first on, the queries before `end` see.
std::int64_t visible(const Attention& head, std::int64_t end) {
  return head.causal ? smaller(end, head.keys) : head.keys;
}

/// c (m, n) = a (m, k) b (k, n).
void product(const Matrix& a, const Matrix& b, float* c, std::int64_t pitch, std::int64_t m, std::int64_t n,
             std::int64_t k, void* scratch) {
  multiply({.a = a, .b = b, .c = c, .pitch = pitch, .m = m, .n = n, .k = k}, scratch);
}

Matrix rows(const float* p, std::int64_t columns) { return {p, columns, 1}; }
Matrix transposed(const float* p, std::int64_t columns) { return {p, 1, columns}; }

}  // namespace

std::int64_t attention_scratch_bytes(const Attention& head) {
  const std::int64_t widest = head.depth > head.values ? head.depth : head.values;
  const std::int64_t most = head.keys > widest ? head.keys : widest;
  const std::int64_t length = head.queries > most ? head.queries : most;
  return product_scratch_bytes({.m = kGroup, .n = most, .k = length});
}

void attention(const Attention& head, float* weights, float* y, void* scratch) {
  for_each_group(head.queries, [&](std::int64_t begin, std::int64_t queries) {
    const std::int64_t keys = visible(head, begin + queries);
    float* const group = weights + begin * head.keys;
    product(rows(head.q + begin * head.depth, head.depth), transposed(head.k, head.depth), group, head.keys, queries,
            keys, head.depth, scratch);
    for (std::int64_t i = 0; i < queries; ++i) {
      float* const row = group + i * head.keys;
      const std::int64_t seen = visible(head, begin + i + 1);
      scale(row, head.scale, seen);
      softmax(row, row, 1, seen);
      for (std::int64_t j = seen; j < head.keys; ++j) row[j] = 0;
    }
    product(rows(group, head.keys), rows(head.v, head.values), y + begin * head.values, head.values, queries,
            head.values, keys, scratch);
  });
}

void attention_backward(const Attention& head, const float* weights, const float* dy, float* dscores, float* dq,
                        float* dk, float* dv, void* scratch) {
  for_each_group(head.queries, [&](std::int64_t begin, std::int64_t queries) {
    const std::int64_t keys = visible(head, begin + queries);
    float* const group = dscores + begin * head.keys;
    product(rows(dy + begin * head.values, head.values), transposed(head.v, head.values), group, head.keys, queries,
            keys, head.values, scratch);
    for (std::int64_t i = 0; i < queries; ++i) {
      float* const row = group + i * head.keys;
      const std::int64_t seen = visible(head, begin + i + 1);
      softmax_backward(weights + (begin + i) * head.keys, row, row, 1, seen);
      scale(row, head.scale, seen);
      for (std::int64_t j = seen; j < head.keys; ++j) row[j] = 0;
    }
    product(rows(group, head.keys), rows(head.k, head.depth), dq + begin * head.depth, head.depth, queries, head.depth,
            keys, scratch);
  });
  for_each_group(head.keys, [&](std::int64_t begin, std::int64_t keys) {
    // The first query that sees one of them.
    const std::int64_t first = head.causal ? smaller(begin, head.queries) : 0, queries = head.queries - first;
    const std::int64_t at = first * head.keys + begin;
    product(transposed(weights + at, head.keys), rows(dy + first * head.values, head.values), dv + begin * head.values,
            head.values, keys, head.values, queries, scratch);
    product(transposed(dscores + at, head.keys), rows(head.q + first * head.depth, head.depth), dk + begin * head.depth,
            head.depth, keys, head.depth, queries, scratch);
  });
}

}  // namespace duet::cpu::DUET_ISA
