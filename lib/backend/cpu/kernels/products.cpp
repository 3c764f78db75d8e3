// Products of matrices. Each element of a result is added up in one fixed order, whatever its row, its column, the
// other rows and the instruction set are: by fused multiply-adds within each chunk of kProductChunk terms of a leaf,
// chunk after chunk, and leaves by the tree. Blocking for caches and registers follows Goto and van de Geijn, "Anatomy
// of High-Performance Matrix Multiplication", 2008.
#include <cstdint>
#include <cstring>
#include <utility>

#include "lib/backend/cpu/kernels/isa.h"

namespace duet::cpu::DUET_ISA {
namespace {

constexpr int kTileRows = kRegisters == 32 ? 14 : 6, kTileVecs = 2;
constexpr int kPanel = kTileVecs * kWidth;                       // columns of a tile
constexpr std::int64_t kRowBlock = 144 / kTileRows * kTileRows;  // rows of a that fit the second cache
constexpr std::int64_t kColumnBlock = 1024;                      // columns of b that share packed rows of a
constexpr std::int64_t kFewRows = 8;                             // for these b isn't packed if it needn't be
constexpr int kMostSegments = 2 * kMostLeaves;

std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

/// Terms of one leaf that one set of accumulators adds up.
struct Segment {
  std::int64_t length;
  bool first, last;  // of its leaf
  int top;           // how many sums of earlier leaves wait
  int merges;        // additions of the tree that follow this leaf: each adds to the last of the sums that wait
  bool end;          // of all
};

/// Segments of which the packed matrices are in the caches together: at most kProductChunk terms.
struct Span {
  std::int64_t begin = 0, length = 0;
  int count = 0;
  Segment segments[kMostSegments];
};

/// Divides the terms of all leaves into spans.
class Order {
 public:
  explicit Order(const Leaves& leaves)
      : leaves_(leaves), at_(leaves.ranges[0]), end_(leaves.ranges[2 * leaves.count - 1]) {
    int last[kMostLeaves];  // by leaf: the last of the leaves in the sum that it holds
    for (int i = 0; i < leaves.count; ++i) last[i] = i;
    for (int i = 0; i < leaves.addition_count; ++i) {
      const int to = leaves.additions[2 * i], from = leaves.additions[2 * i + 1];
      ++merges_[last[from]];
      last[to] = last[from];
    }
    for (int i = 0, top = 0; i < leaves.count; ++i) {
      top += 1 - merges_[i];
      depth_ = top > depth_ ? top : depth_;
    }
  }

  /// The most sums that wait at the same time.
  int depth() const { return depth_; }
  bool is_one_span() const { return end_ - leaves_.ranges[0] <= kProductChunk; }
  bool is_done() const { return leaf_ == leaves_.count; }

  Span next() {
    Span span;
    span.begin = at_;
    while (leaf_ < leaves_.count) {
      const std::int64_t begin = leaves_.ranges[2 * leaf_], end = leaves_.ranges[2 * leaf_ + 1];
      const std::int64_t length = smaller(kProductChunk, end - at_);
      if (span.count == kMostSegments || (span.count > 0 && span.length + length > kProductChunk)) break;
      const bool last = at_ + length == end;
      span.segments[span.count++] = {
          length, at_ == begin, last, top_, last ? merges_[leaf_] : 0, last && leaf_ + 1 == leaves_.count};
      span.length += length;
      at_ += length;
      if (!last) continue;
      top_ += 1 - merges_[leaf_];
      ++leaf_;
    }
    return span;
  }

 private:
  const Leaves& leaves_;
  std::int64_t at_, end_;
  int leaf_ = 0, top_ = 0, depth_ = 1;
  int merges_[kMostLeaves] = {};
};

/// Operands and result of a tile, over one span.
struct TileTask {
  const Span* span = nullptr;
  const float* a = nullptr;  // packed: (term, row of the tile)
  const float* b = nullptr;  // (term, column of the tile), terms `b_step` apart
  std::int64_t b_step = 0;
  float* c = nullptr;  // rows `pitch` apart
  std::int64_t pitch = 0;
  float* waiting = nullptr;     // sums of leaves: (place, row, column of the tile)
  int depth = 0;                // places
  const float* bias = nullptr;  // null: none
  bool add_zero = false;
};

/// A tile of kRows rows and kVecs vectors. Calls nothing, else its accumulators would leave their registers.
template <int kRows, int kVecs>
void tile(const TileTask& task) {
  constexpr int kFloats = kRows * kVecs * kWidth;
  const float *a = task.a, *b = task.b;
  const auto each = [](auto f) { unroll<kRows * kVecs>([&](int i) DUET_INLINE { f(i / kVecs, i % kVecs); }); };
  for (int r = 0; r < kRows; ++r) __builtin_prefetch(task.c + r * task.pitch, 1, 3);
  for (const Segment *s = task.span->segments, *end = s + task.span->count; s != end; ++s) {
    Vec t[kRows][kVecs];
    each([&](int r, int v) DUET_INLINE { t[r][v] = Vec{}; });
    for (std::int64_t k = 0; k < s->length; ++k, a += kTileRows, b += task.b_step) {
      Vec row[kVecs];
      unroll<kVecs>([&](int v) DUET_INLINE { row[v] = load(b + v * kWidth); });
      each([&](int r, int v) DUET_INLINE { t[r][v] = exact_fma(broadcast(a[r]), row[v], t[r][v]); });
    }
    const auto to = [&](int r, int v) DUET_INLINE { return task.c + r * task.pitch + v * kWidth; };
    if (!s->first) each([&](int r, int v) DUET_INLINE { t[r][v] = load(to(r, v)) + t[r][v]; });
    if (s->last) {
      float* place = task.waiting + s->top * kFloats;
      for (int i = 0; i < s->merges; ++i) {
        place -= kFloats;
        each([&](int r, int v) DUET_INLINE { t[r][v] = load(place + (r * kVecs + v) * kWidth) + t[r][v]; });
      }
      if (!s->end) {
        each([&](int r, int v) DUET_INLINE { store(place + (r * kVecs + v) * kWidth, t[r][v]); });
        continue;
      }
      if (task.add_zero) each([&](int r, int v) DUET_INLINE { t[r][v] = t[r][v] + Vec{}; });
      if (task.bias != nullptr)
        each([&](int r, int v) DUET_INLINE { t[r][v] = t[r][v] + load(task.bias + v * kWidth); });
    }
    each([&](int r, int v) DUET_INLINE { store(to(r, v), t[r][v]); });
  }
}

using Tile = void (*)(const TileTask&);
template <int kVecs, int... kRows>
Tile tile_of(std::int64_t rows, std::integer_sequence<int, kRows...>) {
  static constexpr Tile kTiles[] = {tile<kRows + 1, kVecs>...};
  return kTiles[rows - 1];
}
Tile tile_of(std::int64_t rows, bool wide) {
  constexpr auto kAll = std::make_integer_sequence<int, kTileRows>();
  return wide ? tile_of<kTileVecs>(rows, kAll) : tile_of<1>(rows, kAll);
}

/// Transposes `count` (at most 8) rows of 8 floats, `pitch` apart, to 8 rows `to_pitch` apart, from the first on.
[[gnu::always_inline]] inline void transpose8(const float* from, std::int64_t pitch, std::int64_t count, float* to,
                                              std::int64_t to_pitch) {
#if defined(__AVX2__)
  __m256 x[8], u[8];
  for (int j = 0; j < 8; ++j) x[j] = j < count ? _mm256_loadu_ps(from + j * pitch) : _mm256_setzero_ps();
  for (int j = 0; j < 8; j += 2) {
    u[j] = _mm256_unpacklo_ps(x[j], x[j + 1]);
    u[j + 1] = _mm256_unpackhi_ps(x[j], x[j + 1]);
  }
  for (int j = 0; j < 8; j += 4)
    for (int h = 0; h < 2; ++h) {
      x[j + 2 * h] = _mm256_shuffle_ps(u[j + h], u[j + h + 2], 0x44);
      x[j + 2 * h + 1] = _mm256_shuffle_ps(u[j + h], u[j + h + 2], 0xEE);
    }
  for (int j = 0; j < 4; ++j) _mm256_storeu_ps(to + j * to_pitch, _mm256_permute2f128_ps(x[j], x[j + 4], 0x20));
  for (int j = 0; j < 4; ++j) _mm256_storeu_ps(to + (j + 4) * to_pitch, _mm256_permute2f128_ps(x[j], x[j + 4], 0x31));
#else
  for (int i = 0; i < 8; ++i)
    for (int j = 0; j < 8; ++j) to[i * to_pitch + j] = j < count ? from[j * pitch + i] : 0;
#endif
}

/// Packs `rows` (at most kSide) rows of m, and zeros for those that are missing, to (column, row). Writes up to 8
/// floats behind the last.
template <int kSide>
void pack(const Matrix& m, std::int64_t rows, std::int64_t columns, float* to) {
  std::int64_t k = 0;
  if (m.row == 1 && rows == kSide)
    for (; k < columns; ++k) std::memcpy(to + k * kSide, m.p + k * m.column, kSide * sizeof(float));
  if (m.column == 1) {
    // Eight rows at a time, which the first cache holds whatever their pitch. What the last eight spill into the next
    // column is written afterwards.
    const std::int64_t whole = columns / 8 * 8;
    for (std::int64_t r = (kSide - 1) / 8 * 8; r >= 0; r -= 8)
      for (k = 0; k < whole; k += 8) transpose8(m.p + r * m.row + k, m.row, rows - r, to + k * kSide + r, kSide);
  }
  for (; k < columns; ++k)
    for (std::int64_t r = 0; r < kSide; ++r) to[k * kSide + r] = r < rows ? m.p[r * m.row + k * m.column] : 0;
}

/// The parts of the scratch memory, each from a cache line on.
struct Workspace {
  Workspace(const Product& p, const Order& order, void* memory) {
    const std::int64_t rows = round_up(p.m, kTileRows), columns = round_up(smaller(p.n, kColumnBlock), kPanel);
    a_floats = round_up(smaller(rows, kRowBlock) * kProductChunk + 8, kLine);
    b_floats = round_up((is_one_block(p) ? kPanel : columns) * kProductChunk + 8, kLine);
    waiting_floats = order.depth() * (order.is_one_span() ? kTileRows * kPanel : rows * columns);
    a = reinterpret_cast<float*>((reinterpret_cast<std::uintptr_t>(memory) + 63) / 64 * 64);
  }
  /// Whether all rows are in one block, so that a panel of b is used up before the next is packed.
  static bool is_one_block(const Product& p) { return p.m <= kRowBlock; }
  float* b() const { return a + a_floats; }
  float* waiting() const { return b() + b_floats; }
  std::int64_t bytes() const { return (a_floats + b_floats + waiting_floats + kLine) * 4; }

  static constexpr std::int64_t kLine = 16;
  std::int64_t a_floats, b_floats, waiting_floats;
  float* a;
};

/// All terms of a product's element, as one leaf.
struct OneLeaf {
  explicit OneLeaf(std::int64_t k) : ranges{0, k} {}
  Leaves leaves() const { return {ranges, 1, nullptr, 0, false}; }
  std::int64_t ranges[2];
};

/// Rows [row, row + rows) and the panel at `column` of p's result, over one span.
void multiply_panel(const Product& p, TileTask task, const Workspace& space, bool is_one_span, std::int64_t row,
                    std::int64_t rows, std::int64_t column, std::int64_t panel, std::int64_t panels) {
  const std::int64_t left = smaller(kPanel, p.n - column);
  const bool is_wide = left > kWidth, is_edge = left < (is_wide ? kPanel : kWidth);
  float bias[kPanel] = {}, edge[kTileRows * kPanel];
  if (task.bias != nullptr) {
    task.bias += column;
    if (is_edge) {
      for (std::int64_t i = 0; i < left; ++i) bias[i] = task.bias[i];
      task.bias = bias;
    }
  }
  for (std::int64_t i = 0; i < rows; i += kTileRows) {
    const std::int64_t tile_rows = smaller(kTileRows, rows - i);
    float* const c = p.c + (row + i) * p.pitch + column;
    task.a = space.a + i * task.span->length;
    if (!is_one_span)
      task.waiting = space.waiting() + ((row + i) / kTileRows * panels + panel) * kTileRows * kPanel * task.depth;
    task.c = is_edge ? edge : c;
    task.pitch = is_edge ? kPanel : p.pitch;
    for (std::int64_t r = 0; is_edge && r < tile_rows; ++r)
      for (std::int64_t j = 0; j < left; ++j) edge[r * kPanel + j] = c[r * p.pitch + j];
    tile_of(tile_rows, is_wide)(task);
    for (std::int64_t r = 0; is_edge && r < tile_rows; ++r)
      for (std::int64_t j = 0; j < left; ++j) c[r * p.pitch + j] = edge[r * kPanel + j];
  }
}

}  // namespace

std::int64_t product_scratch_bytes(const Product& p) {
  const OneLeaf all(p.k);
  return Workspace(p, Order(p.leaves != nullptr ? *p.leaves : all.leaves()), nullptr).bytes();
}

void multiply(const Product& p, void* scratch) {
  const OneLeaf all(p.k);
  const Leaves leaves = p.leaves != nullptr ? *p.leaves : all.leaves();
  const Workspace space(p, Order(leaves), scratch);
  for (std::int64_t column = 0; column < p.n; column += kColumnBlock) {
    const std::int64_t columns = smaller(kColumnBlock, p.n - column), panels = (columns + kPanel - 1) / kPanel;
    for (Order order(leaves); !order.is_done();) {
      const Span span = order.next();
      TileTask task = {.span = &span,
                       .waiting = space.waiting(),
                       .depth = order.depth(),
                       .bias = p.bias,
                       .add_zero = leaves.add_zero};
      for (std::int64_t row = 0; row < p.m; row += kRowBlock) {
        const std::int64_t rows = smaller(kRowBlock, p.m - row);
        for (std::int64_t i = 0; i < rows; i += kTileRows)
          pack<kTileRows>({p.a.p + (row + i) * p.a.row + span.begin * p.a.column, p.a.row, p.a.column},
                          smaller(kTileRows, rows - i), span.length, space.a + i * span.length);
        for (std::int64_t panel = 0; panel < panels; ++panel) {
          const std::int64_t at = column + panel * kPanel;
          const float* const from = p.b.p + span.begin * p.b.row + at * p.b.column;
          if (p.m <= kFewRows && p.b.column == 1 && at + kPanel <= p.n) {
            task.b = from;
            task.b_step = p.b.row;
          } else {
            float* const packed = space.b() + (Workspace::is_one_block(p) ? 0 : panel * kPanel * span.length);
            if (row == 0) pack<kPanel>({from, p.b.column, p.b.row}, smaller(kPanel, p.n - at), span.length, packed);
            task.b = packed;
            task.b_step = kPanel;
          }
          multiply_panel(p, task, space, order.is_one_span(), row, rows, at, panel, panels);
        }
      }
    }
  }
}

std::int64_t linear_forward_scratch_bytes(std::int64_t n, std::int64_t in, std::int64_t out) {
  return product_scratch_bytes({.m = n, .n = out, .k = in});
}

void linear(const float* x, const float* w, const float* bias, float* y, std::int64_t n, std::int64_t in,
            std::int64_t out, void* scratch) {
  multiply({.a = {x, in, 1}, .b = {w, 1, in}, .c = y, .pitch = out, .m = n, .n = out, .k = in, .bias = bias}, scratch);
}

namespace {

/// to[c] = sum of `rows` rows of kVecs vectors.
template <int kVecs>
void sum_columns(const float* from, std::int64_t rows, std::int64_t pitch, float* to) {
  Vec total[kVecs] = {};
  for (std::int64_t r = 0; r < rows; ++r)
    unroll<kVecs>([&](int v) { total[v] = total[v] + load(from + r * pitch + v * kWidth); });
  unroll<kVecs>([&](int v) { store(to + v * kWidth, total[v]); });
}

}  // namespace

void sum_rows(const float* dy, float* db, std::int64_t columns, const Leaves& leaves) {
  constexpr std::int64_t kColumns = 64;
  for (std::int64_t c = 0; c < columns; c += kColumns) {
    const std::int64_t width = smaller(kColumns, columns - c);
    float part[kMostLeaves][kColumns];
    for (int leaf = 0; leaf < leaves.count; ++leaf) {
      const std::int64_t row = leaves.ranges[2 * leaf], rows = leaves.ranges[2 * leaf + 1] - row;
      const float* const from = dy + row * columns + c;
      std::int64_t i = 0;
      if (width == kColumns) {
        sum_columns<kColumns / kWidth>(from, rows, columns, part[leaf]);
        continue;
      }
      for (; i + kWidth <= width; i += kWidth) sum_columns<1>(from + i, rows, columns, part[leaf] + i);
      for (; i < width; ++i) {
        part[leaf][i] = 0;
        for (std::int64_t r = 0; r < rows; ++r) part[leaf][i] += from[r * columns + i];
      }
    }
    for (int k = 0; k < leaves.addition_count; ++k)
      for (std::int64_t i = 0; i < width; ++i) part[leaves.additions[2 * k]][i] += part[leaves.additions[2 * k + 1]][i];
    for (std::int64_t i = 0; i < width; ++i) db[c + i] = leaves.add_zero ? part[0][i] + 0.0f : part[0][i];
  }
}

}  // namespace duet::cpu::DUET_ISA
