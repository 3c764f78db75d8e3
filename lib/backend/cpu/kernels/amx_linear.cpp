// Forward of a linear layer by AMX: y^T = w x^T, so that the weights, of which there are most, need not be transposed.
#include <cstdint>

#include "lib/backend/cpu/kernels/amx_tile.h"

namespace duet::cpu::DUET_ISA {
namespace {

constexpr std::int64_t kRows = 128;               // that share the splitting of the weights
constexpr std::int64_t kDepths = 14;              // times kTileDepth inputs are summed at once: longer sums round more
constexpr std::int64_t kOutputs = 2 * kTileRows;  // computed together
constexpr std::int64_t kMostOutputs = 512;        // their weights fit the second cache

bool takes(std::int64_t in, std::int64_t out) {
  return in > 0 && in % kTileDepth == 0 && out > 0 && out % kOutputs == 0 && out <= kMostOutputs;
}

std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

/// Words of the parts of kTileRows rows of kTileDepth columns.
constexpr std::int64_t kMatrix = kParts * kPart;

/// Words of the parts of the scratch memory.
std::int64_t weight_words(std::int64_t out) { return out / kTileRows * kDepths * kMatrix; }
constexpr std::int64_t kInputWords = kDepths * kMatrix, kSumWords = 2 * kOutputs * kTileRows;

struct Scratch {
  Scratch(std::int64_t out, void* memory)
      : weights(static_cast<std::uint32_t*>(memory)),
        inputs(weights + weight_words(out)),
        sums(reinterpret_cast<float*>(inputs + kInputWords)),
        totals(sums + kSumWords) {}
  std::uint32_t* weights;  // (outputs / kTileRows, depth, part, output, pair of inputs)
  std::uint32_t* inputs;   // (depth, part, pair of inputs, row)
  float* sums;             // (large or small products, output, row), of kDepths
  float* totals;           // (row / kTileRows, output, row)
};

/// Splits kTileRows rows of kTileDepth floats into bf16 parts; pairs are columns c and c + 16.
void split_rows(const float* x, std::int64_t pitch, std::uint32_t* to) {
  for (std::int64_t r = 0; r < kTileRows; ++r)
    split(load(x + r * pitch), load(x + r * pitch + kTileWords), to + r * kTileWords, kPart);
}

/// Splits `rows` rows, and zeros behind them, as split_rows() does, and transposes the parts.
void split_columns(const float* x, std::int64_t pitch, std::int64_t rows, std::uint32_t* to) {
  alignas(64) std::uint32_t parts[kMatrix] = {};
  for (std::int64_t r = 0; r < rows; ++r)
    split(load(x + r * pitch), load(x + r * pitch + kTileWords), parts + r * kTileWords, kPart);
  for (int part = 0; part < kParts; ++part)
    avx512::table.unblock(reinterpret_cast<const float*>(parts + part * kPart),
                          reinterpret_cast<float*>(to + part * kPart), kTileRows, kTileWords);
}

/// totals (kOutputs, row) += the products over `depths` times kTileDepth inputs.
void multiply(const std::uint32_t* weights, std::int64_t pitch, const std::uint32_t* inputs, std::int64_t depths,
              float* sums, float* totals) {
  constexpr int kA = 4, kB = 5;
  clear_four_tiles();
  for (std::int64_t depth = 0; depth < depths; ++depth, weights += kMatrix, inputs += kMatrix) {
    load_parts<kB>(inputs);
    multiply_parts<0, 1, kA, kB>(weights, kPart);
    multiply_parts<2, 3, kA, kB>(weights + pitch, kPart);
  }
  store_tile<0>(sums);
  store_tile<1>(sums + 2 * kPart);
  store_tile<2>(sums + kPart);
  store_tile<3>(sums + 3 * kPart);
  for (std::int64_t i = 0; i < kOutputs * kTileRows; i += kWidth)
    store(totals + i, load(totals + i) + (load(sums + i) + load(sums + 2 * kPart + i)));
}

/// At most kRows rows.
void linear_rows(const float* x, const float* w, const float* bias, float* y, std::int64_t n, std::int64_t in,
                 std::int64_t out, const Scratch& s) {
  const Tiles tiles(kTileRows);
  for (std::int64_t row = 0; row < n; row += kTileRows)
    for (std::int64_t o = 0; o < out; ++o)
      store(s.totals + row * out + o * kTileRows, broadcast(bias != nullptr ? bias[o] : 0.0f));
  for (std::int64_t begin = 0; begin < in; begin += kDepths * kTileDepth) {
    const std::int64_t depths = smaller(kDepths, (in - begin) / kTileDepth), pitch = kDepths * kMatrix;
    for (std::int64_t o = 0; o < out; o += kTileRows)
      for (std::int64_t depth = 0; depth < depths; ++depth)
        split_rows(w + o * in + begin + depth * kTileDepth, in, s.weights + o / kTileRows * pitch + depth * kMatrix);
    for (std::int64_t row = 0; row < n; row += kTileRows) {
      for (std::int64_t depth = 0; depth < depths; ++depth)
        split_columns(x + row * in + begin + depth * kTileDepth, in, smaller(kTileRows, n - row),
                      s.inputs + depth * kMatrix);
      for (std::int64_t o = 0; o < out; o += kOutputs)
        multiply(s.weights + o / kTileRows * pitch, pitch, s.inputs, depths, s.sums,
                 s.totals + row * out + o * kTileRows);
    }
  }
  for (std::int64_t row = 0; row < n; row += kTileRows) {
    const float* const totals = s.totals + row * out;
    if (row + kTileRows <= n) {
      avx512::table.unblock(totals, y + row * out, out, kTileRows);
    } else {
      for (std::int64_t r = row; r < n; ++r)
        for (std::int64_t o = 0; o < out; ++o) y[r * out + o] = totals[o * kTileRows + r - row];
    }
  }
}

}  // namespace

std::int64_t linear_forward_scratch_bytes(std::int64_t n, std::int64_t in, std::int64_t out) {
  return takes(in, out) ? 4 * (weight_words(out) + kInputWords + kSumWords + kRows * out)
                        : avx512::table.linear_forward_scratch_bytes(n, in, out);
}

void linear(const float* x, const float* w, const float* bias, float* y, std::int64_t n, std::int64_t in,
            std::int64_t out, void* scratch) {
  if (!takes(in, out)) return avx512::table.linear(x, w, bias, y, n, in, out, scratch);
  for (std::int64_t row = 0; row < n; row += kRows)
    linear_rows(x + row * in, w, bias, y + row * out, smaller(kRows, n - row), in, out, Scratch(out, scratch));
}

}  // namespace duet::cpu::DUET_ISA
