// Gradients of a linear layer over the nonzero elements of dy only: relu and dropout make most of them zero. A term
// that is zero changes no sum unless its other factor is not finite. From such a factor on, zeros are counted, too.
#include <cstdint>
#include <type_traits>

#include "lib/backend/cpu/kernels/isa.h"

namespace duet::cpu::DUET_ISA {
namespace {

// Vectors of columns summed at once: enough chains of additions, from rows that fit the first cache.
constexpr int kStrip = kWidth == 16 ? 4 : 8;
constexpr std::int64_t kRowsAhead = 8;  // so early a row that will be written is fetched

struct NonzeroGradient {
  std::int32_t row;
  float value;
};

/// Columns of a matrix that are summed together.
struct Strip {
  std::int64_t begin, columns;

  /// Copies `columns` floats, which are fewer than a vector has where they are not whole vectors.
  template <int kVecs>
  [[gnu::always_inline]] void copy(const float* from, float* to) const {
    if (columns % kWidth == 0) {
      for (int v = 0; v < kVecs; ++v) store(to + v * kWidth, load(from + v * kWidth));
    } else {
      for (std::int64_t i = 0; i < columns; ++i) to[i] = from[i];
    }
  }
};

/// Calls f(strip) for all of [begin, end): with kStrip vectors, then with one, then with what is left.
template <class F>
void for_each_strip(std::int64_t begin, std::int64_t end, F f) {
  constexpr std::integral_constant<int, kStrip> kMany;
  constexpr std::integral_constant<int, 1> kOne;
  std::int64_t c = begin;
  for (; c + kStrip * kWidth <= end; c += kStrip * kWidth) f(kMany, Strip{c, kStrip * kWidth});
  for (; c < end; c += kWidth) f(kOne, Strip{c, end - c < kWidth ? end - c : kWidth});
}

/// Copies a strip of each of `count` rows, so that they lie side by side: rows far apart would each need a page of the
/// address cache. Returns whether all numbers are finite.
template <int kVecs>
bool pack(const Strip& strip, const float* rows, std::int64_t count, std::int64_t pitch, float* to) {
  Vec zero[kVecs] = {};
  for (std::int64_t i = 0; i < count; ++i, to += kVecs * kWidth) {
    if (strip.columns < kWidth) store(to, Vec{});
    strip.copy<kVecs>(rows + i * pitch + strip.begin, to);
    for (int v = 0; v < kVecs; ++v) zero[v] = fma(load(to + v * kWidth), Vec{}, zero[v]);
  }
  float total = 0;
  for (int v = 0; v < kVecs; ++v) total += sum(zero[v]);
  return total == 0;
}

/// One row of a strip, into the second cache: rows lie so far apart that the processor does not see what comes next.
template <int kVecs>
[[gnu::always_inline]] inline void fetch_row(const float* p) {
  constexpr int kLine = 16;
  for (int c = 0; c < kVecs * kWidth; c += kLine) fetch(p + c);
}

/// to = sum over the list of value * row of the strip, in the order of the products in products.cpp; the list is of
/// rows [begin, end).
template <int kVecs>
[[gnu::always_inline]] inline void add_rows(const NonzeroGradient* list, std::int64_t count, std::int64_t begin,
                                            std::int64_t end, const float* strip, float* to) {
  Vec total[kVecs] = {};
  std::int64_t i = 0;
  for (std::int64_t chunk = begin; chunk == begin || chunk < end; chunk += kProductChunk) {
    std::int64_t stop = count;
    if (chunk + kProductChunk < end)
      for (stop = i; stop < count && list[stop].row < chunk + kProductChunk;) ++stop;
    Vec sum[kVecs] = {};
    for (; i < stop; ++i) {
      const Vec factor = broadcast(list[i].value);
      const float* const row = strip + list[i].row * (kVecs * kWidth);
      for (int v = 0; v < kVecs; ++v) sum[v] = exact_fma(factor, load(row + v * kWidth), sum[v]);
    }
    for (int v = 0; v < kVecs; ++v) total[v] = chunk == begin ? sum[v] : total[v] + sum[v];
  }
  for (int v = 0; v < kVecs; ++v) store(to + v * kWidth, total[v]);
}

/// The gradients of each row that are not zero, or all: up to `out` entries from lists + row * out on.
void collect_rows(const float* dy, std::int64_t n, std::int64_t out, bool all, NonzeroGradient* lists,
                  std::int32_t* counts) {
  for (std::int64_t r = 0; r < n; ++r) {
    std::int32_t count = 0;
    for (std::int64_t o = 0; o < out; ++o) {
      lists[r * out + count] = {static_cast<std::int32_t>(o), dy[r * out + o]};
      count += all || dy[r * out + o] != 0;
    }
    counts[r] = count;
  }
}

/// The strip of dx, of whose weights `packed` holds a copy.
template <int kVecs>
void data_strip(const Strip& strip, const NonzeroGradient* lists, const std::int32_t* counts, const float* packed,
                const float* w, float* dx, std::int64_t n, std::int64_t in, std::int64_t out) {
  alignas(64) float sums[kVecs * kWidth];
  for (std::int64_t r = 0; r < n; ++r) {
    float* const to = dx + r * in + strip.begin;
    if (r < out) fetch_row<kVecs>(w + r * in + strip.begin + kVecs * kWidth);
    if (r + kRowsAhead < n) fetch_row<kVecs>(to + kRowsAhead * in);
    add_rows<kVecs>(lists + r * out, counts[r], 0, out, packed, sums);
    strip.copy<kVecs>(sums, to);
  }
}

/// For each output the rows where its gradient is nonzero (or all rows), in order, and where each leaf begins among
/// them.
struct NonzeroRows {
  NonzeroGradient* entries;
  std::int32_t* bounds;  // leaves + 1 per output
  std::int64_t rows;
  int leaves;

  const NonzeroGradient* list(std::int64_t o) const { return entries + o * rows; }
  std::int32_t* bound(std::int64_t o) const { return bounds + o * (leaves + 1); }
};

void collect_outputs(const float* dy, std::int64_t out, const Leaves& leaves, bool all, const NonzeroRows& nonzero) {
  for (std::int64_t o = 0; o < out; ++o) nonzero.bound(o)[0] = 0;
  for (int leaf = 0; leaf < leaves.count; ++leaf) {
    for (std::int64_t o = 0; o < out; ++o) nonzero.bound(o)[leaf + 1] = nonzero.bound(o)[leaf];
    for (std::int64_t r = leaves.ranges[2 * leaf]; r < leaves.ranges[2 * leaf + 1]; ++r) {
      const auto row = static_cast<std::int32_t>(r - leaves.ranges[0]);
      for (std::int64_t o = 0; o < out; ++o) {
        std::int32_t& end = nonzero.bound(o)[leaf + 1];
        nonzero.entries[o * nonzero.rows + end] = {row, dy[r * out + o]};
        end += all || dy[r * out + o] != 0;
      }
    }
  }
}

/// The strip of dw, of whose inputs `packed` holds a copy.
template <int kVecs>
void weight_strip(const Strip& strip, const NonzeroRows& nonzero, const float* packed, const float* x, float* dw,
                  std::int64_t in, std::int64_t out, const Leaves& leaves) {
  constexpr int kColumns = kVecs * kWidth;
  alignas(64) float part[kMostLeaves][kColumns];
  for (std::int64_t o = 0; o < out; ++o) {
    const std::int32_t* const bound = nonzero.bound(o);
    float* const row = dw + o * in + strip.begin;
    if (o < nonzero.rows) fetch_row<kVecs>(x + (leaves.ranges[0] + o) * in + strip.begin + kColumns);
    if (o + kRowsAhead < out) fetch_row<kVecs>(row + kRowsAhead * in);
    for (int leaf = 0; leaf < leaves.count; ++leaf)
      add_rows<kVecs>(nonzero.list(o) + bound[leaf], bound[leaf + 1] - bound[leaf],
                      leaves.ranges[2 * leaf] - leaves.ranges[0], leaves.ranges[2 * leaf + 1] - leaves.ranges[0],
                      packed, part[leaf]);
    for (int k = 0; k < leaves.addition_count; ++k) {
      float* const to = part[leaves.additions[2 * k]];
      const float* const from = part[leaves.additions[2 * k + 1]];
      for (int v = 0; v < kColumns; v += kWidth) store(to + v, load(to + v) + load(from + v));
    }
    for (int v = 0; leaves.add_zero && v < kColumns; v += kWidth) store(part[0] + v, load(part[0] + v) + Vec{});
    strip.copy<kVecs>(part[0], row);
  }
}

/// The contents of the scratch memory: the strip, the lists with room for one entry more, and their lengths.
struct Scratch {
  Scratch(void* memory, std::int64_t n, std::int64_t out) {
    const std::int64_t rows = n > out ? n : out, lengths = n > out * (kMostLeaves + 1) ? n : out * (kMostLeaves + 1);
    strip = static_cast<float*>(memory);
    const std::int64_t strip_floats = rows * kStrip * kWidth, list_floats = 2 * (n * out + 1);
    bytes = (strip_floats + list_floats + lengths) * 4;
    if (memory == nullptr) return;
    entries = reinterpret_cast<NonzeroGradient*>(strip + strip_floats);
    counts = reinterpret_cast<std::int32_t*>(strip + strip_floats + list_floats);
  }
  float* strip;
  NonzeroGradient* entries = nullptr;
  std::int32_t* counts = nullptr;
  std::int64_t bytes;
};

}  // namespace

std::int64_t nonzero_linear_scratch_bytes(std::int64_t n, std::int64_t out) { return Scratch(nullptr, n, out).bytes; }

void nonzero_linear_data(const float* dy, const float* w, float* dx, std::int64_t n, std::int64_t in, std::int64_t out,
                         void* memory) {
  const Scratch s(memory, n, out);
  collect_rows(dy, n, out, false, s.entries, s.counts);
  for_each_strip(0, in, [&](auto vectors, const Strip& strip) {
    constexpr int kVecs = vectors;
    if (!pack<kVecs>(strip, w, out, in, s.strip)) collect_rows(dy, n, out, true, s.entries, s.counts);
    data_strip<kVecs>(strip, s.entries, s.counts, s.strip, w, dx, n, in, out);
  });
}

void nonzero_linear_weights(const float* x, const float* dy, float* dw, std::int64_t in, std::int64_t out,
                            std::int64_t begin, std::int64_t end, const Leaves& leaves, void* memory) {
  const std::int64_t rows = leaves.ranges[2 * leaves.count - 1] - leaves.ranges[0];
  const Scratch s(memory, rows, out);
  const NonzeroRows nonzero = {s.entries, s.counts, rows, leaves.count};
  collect_outputs(dy, out, leaves, false, nonzero);
  for_each_strip(begin, end, [&](auto vectors, const Strip& strip) {
    constexpr int kVecs = vectors;
    if (!pack<kVecs>(strip, x + leaves.ranges[0] * in, rows, in, s.strip))
      collect_outputs(dy, out, leaves, true, nonzero);
    weight_strip<kVecs>(strip, nonzero, s.strip, x, dw, in, out, leaves);
  });
}

}  // namespace duet::cpu::DUET_ISA
