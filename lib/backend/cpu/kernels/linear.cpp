#include <cstdint>

#include "lib/backend/cpu/kernels/isa.h"

namespace duet::cpu::DUET_ISA {
namespace {

constexpr int kTileRows = kRegisters == 32 ? 4 : 2;  // rows x vectors of accumulators fit the registers
constexpr int kTileVecs = 4;
constexpr std::int64_t kColumns = 64;  // columns walked at a time

constexpr std::int64_t kDepth = 784;  // inputs walked at a time: so many of kGroup rows stay in the first cache
constexpr std::int64_t kGroup = 8;

/// y[r][o] += x[r] . w[o] over `depth` inputs, for a tile of kR rows and kO outputs. Each element has one accumulator
/// that walks the inputs in order, so it does not depend on the tile that it is in.
template <int kR, int kO>
void dot_tile(const float* x, const float* w, float* y, std::int64_t depth, std::int64_t in, std::int64_t out) {
  Vec total[kR * kO] = {};
  std::int64_t i = 0;
  for (; i + kWidth <= depth; i += kWidth) {
    Vec a[kR];
    for (int r = 0; r < kR; ++r) a[r] = load(x + r * in + i);
    for (int o = 0; o < kO; ++o) {
      const Vec b = load(w + o * in + i);
      for (int r = 0; r < kR; ++r) total[r * kO + o] = fma(a[r], b, total[r * kO + o]);
    }
  }
  float dots[kR * kO];
  if constexpr (kR * kO % kWidth == 0) {
    for (int t = 0; t < kR * kO; t += kWidth) store(dots + t, sums(total + t));
  } else {
    for (int t = 0; t < kR * kO; ++t) dots[t] = sum(total[t]);
  }
  if (i < depth)
    for (int t = 0; t < kR * kO; ++t)
      for (std::int64_t k = i; k < depth; ++k) dots[t] = fma(x[t / kO * in + k], w[t % kO * in + k], dots[t]);
  for (int r = 0; r < kR; ++r)
    for (int o = 0; o < kO; ++o) y[r * out + o] += dots[r * kO + o];
}

template <int kR>
void dot_rows(const float* x, const float* w, float* y, std::int64_t depth, std::int64_t in, std::int64_t out,
              std::int64_t o) {
  if (o + 4 <= out) return dot_tile<kR, 4>(x, w + o * in, y + o, depth, in, out);
  for (; o < out; ++o) dot_tile<kR, 1>(x, w + o * in, y + o, depth, in, out);
}

/// tile[r][v] = sum over k of a[k * a_step + r * a_row] * b[k * b_step + v], kR rows by kV vectors.
template <int kR, int kV>
void outer_tile(std::int64_t k, const float* a, std::int64_t a_step, std::int64_t a_row, const float* b,
                std::int64_t b_step, float* tile, std::int64_t tile_row) {
  Vec total[kR][kV] = {};
  for (std::int64_t i = 0; i < k; ++i) {
    Vec row[kV];
    for (int v = 0; v < kV; ++v) row[v] = load(b + i * b_step + v * kWidth);
    for (int r = 0; r < kR; ++r) {
      const Vec factor = broadcast(a[i * a_step + r * a_row]);
      for (int v = 0; v < kV; ++v) total[r][v] = fma(factor, row[v], total[r][v]);
    }
  }
  for (int r = 0; r < kR; ++r)
    for (int v = 0; v < kV; ++v) store(tile + r * tile_row + v * kWidth, total[r][v]);
}

/// Computes what outer_tile does for any number of columns: `columns`, at most kColumns.
template <int kR>
void outer_columns(std::int64_t k, const float* a, std::int64_t a_step, std::int64_t a_row, const float* b,
                   std::int64_t b_step, float* tile, std::int64_t tile_row, std::int64_t columns) {
  std::int64_t c = 0;
  for (; c + kTileVecs * kWidth <= columns; c += kTileVecs * kWidth)
    outer_tile<kR, kTileVecs>(k, a, a_step, a_row, b + c, b_step, tile + c, tile_row);
  for (; c + kWidth <= columns; c += kWidth) outer_tile<kR, 1>(k, a, a_step, a_row, b + c, b_step, tile + c, tile_row);
  for (; c < columns; ++c) {
    for (int r = 0; r < kR; ++r) {
      float total = 0;
      for (std::int64_t i = 0; i < k; ++i) total += a[i * a_step + r * a_row] * b[i * b_step + c];
      tile[r * tile_row + c] = total;
    }
  }
}

std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

/// kR rows of dw from row `o` on, columns [begin, begin + columns): every leaf's sum, then the tree.
template <int kR>
void weight_tile(const float* x, const float* dy, float* dw, std::int64_t in, std::int64_t out, std::int64_t o,
                 std::int64_t begin, std::int64_t columns, const Leaves& leaves) {
  alignas(64) float part[kMostLeaves][kR * kColumns];
  for (int leaf = 0; leaf < leaves.count; ++leaf) {
    const std::int64_t row = leaves.ranges[2 * leaf], rows = leaves.ranges[2 * leaf + 1] - row;
    outer_columns<kR>(rows, dy + row * out + o, out, 1, x + row * in + begin, in, part[leaf], kColumns, columns);
  }
  for (int k = 0; k < leaves.addition_count; ++k) {
    float* const to = part[leaves.additions[2 * k]];
    const float* const from = part[leaves.additions[2 * k + 1]];
    for (int i = 0; i < kR * kColumns; ++i) to[i] += from[i];
  }
  const float zero = 0;
  for (int r = 0; r < kR; ++r) {
    float* const to = dw + (o + r) * in + begin;
    const float* const from = part[0] + r * kColumns;
    if (leaves.add_zero) {
      for (std::int64_t c = 0; c < columns; ++c) to[c] = from[c] + zero;
    } else {
      for (std::int64_t c = 0; c < columns; ++c) to[c] = from[c];
    }
  }
}

/// y = x w^T + bias. finish(begin, end) is called once for every run of rows, when they are complete and still in the
/// first cache.
template <class Finish>
void linear_rows(const float* x, const float* w, const float* bias, float* y, std::int64_t n, std::int64_t in,
                 std::int64_t out, Finish finish) {
  for (std::int64_t r = 0; r < n; ++r)
    for (std::int64_t o = 0; o < out; ++o) y[r * out + o] = bias ? bias[o] : 0.0f;
  for (std::int64_t k = 0; k < in; k += kDepth) {
    const std::int64_t depth = smaller(kDepth, in - k);
    for (std::int64_t group = 0; group < n; group += kGroup) {
      const std::int64_t end = smaller(n, group + kGroup);
      for (std::int64_t o = 0; o < out; o += 4) {
        std::int64_t r = group;
        for (; r + kTileRows <= end; r += kTileRows)
          dot_rows<kTileRows>(x + r * in + k, w + k, y + r * out, depth, in, out, o);
        for (; r < end; ++r) dot_rows<1>(x + r * in + k, w + k, y + r * out, depth, in, out, o);
      }
      if (k + depth == in) finish(group, end);
    }
  }
  if (in == 0) finish(0, n);
}

}  // namespace

std::int64_t linear_forward_scratch_bytes(std::int64_t, std::int64_t) { return 0; }

void linear(const float* x, const float* w, const float* bias, float* y, std::int64_t n, std::int64_t in,
            std::int64_t out, void*) {
  linear_rows(x, w, bias, y, n, in, out, [](std::int64_t, std::int64_t) {});
}

void linear_relu_dropout(const float* x, const float* w, const float* bias, const std::uint8_t* mask, float scale,
                         float* y, std::int64_t n, std::int64_t in, std::int64_t out, void*) {
  linear_rows(x, w, bias, y, n, in, out, [=](std::int64_t begin, std::int64_t end) {
    relu(y + begin * out, y + begin * out, (end - begin) * out);
    if (mask != nullptr) mask_scale(y + begin * out, mask + begin * out, scale, y + begin * out, (end - begin) * out);
  });
}

void dense_backward_data(const float* dy, const float* w, float* dx, std::int64_t n, std::int64_t in, std::int64_t out,
                         std::int64_t begin, std::int64_t end) {
  for (std::int64_t c = begin; c < end; c += kColumns) {
    const std::int64_t columns = smaller(kColumns, end - c);
    std::int64_t r = 0;
    for (; r + kTileRows <= n; r += kTileRows)
      outer_columns<kTileRows>(out, dy + r * out, 1, out, w + c, in, dx + r * in + c, in, columns);
    for (; r < n; ++r) outer_columns<1>(out, dy + r * out, 1, out, w + c, in, dx + r * in + c, in, columns);
  }
}

void dense_backward_weights(const float* x, const float* dy, float* dw, std::int64_t in, std::int64_t out,
                            std::int64_t begin, std::int64_t end, const Leaves& leaves) {
  for (std::int64_t c = begin; c < end; c += kColumns) {
    const std::int64_t columns = smaller(kColumns, end - c);
    std::int64_t o = 0;
    for (; o + kTileRows <= out; o += kTileRows) weight_tile<kTileRows>(x, dy, dw, in, out, o, c, columns, leaves);
    for (; o < out; ++o) weight_tile<1>(x, dy, dw, in, out, o, c, columns, leaves);
  }
}

void sum_rows(const float* dy, float* db, std::int64_t columns, const Leaves& leaves) {
  const float one = 1;
  for (std::int64_t c = 0; c < columns; c += kColumns) {
    const std::int64_t width = smaller(kColumns, columns - c);
    float part[kMostLeaves][kColumns];
    for (int leaf = 0; leaf < leaves.count; ++leaf) {
      const std::int64_t row = leaves.ranges[2 * leaf], rows = leaves.ranges[2 * leaf + 1] - row;
      outer_columns<1>(rows, &one, 0, 0, dy + row * columns + c, columns, part[leaf], kColumns, width);
    }
    for (int k = 0; k < leaves.addition_count; ++k)
      for (std::int64_t i = 0; i < width; ++i) part[leaves.additions[2 * k]][i] += part[leaves.additions[2 * k + 1]][i];
    for (std::int64_t i = 0; i < width; ++i) db[c + i] = leaves.add_zero ? part[0][i] + 0.0f : part[0][i];
  }
}

}  // namespace duet::cpu::DUET_ISA
