#include "lib/data/mnist/drawn_digits.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "lib/random.h"

namespace duet::data {
namespace {

constexpr int kSide = 28;
constexpr std::size_t kPixels = kSide * kSide, kMostCorners = 13;
constexpr float kFar = 1e6f;

struct Point {
  float x, y;
};

/// The skeleton of a digit: x and y of each corner in hundredths of its box, y downwards. Digits with a second stroke
/// begin it at corner `second`.
struct Glyph {
  std::size_t corners;
  std::size_t second;
  std::array<std::uint8_t, 2 * kMostCorners> at;
};

constexpr std::array<Glyph, 10> kGlyphs = {{
    {13, 13, {50, 7, 35, 13, 26, 29, 22, 50, 26, 71, 35, 87, 50, 93, 65, 87, 74, 71, 78, 50, 74, 29, 65, 13, 50, 7}},
    {3, 3, {36, 24, 54, 7, 54, 93}},
    {9, 9, {24, 28, 30, 14, 48, 7, 66, 13, 74, 28, 68, 45, 50, 63, 24, 92, 78, 92}},
    {11, 11, {25, 15, 45, 7, 66, 13, 72, 28, 62, 43, 44, 48, 64, 54, 76, 70, 68, 87, 45, 94, 23, 85}},
    {5, 3, {60, 7, 20, 62, 82, 62, 62, 30, 62, 94}},
    {9, 9, {74, 8, 32, 8, 28, 46, 50, 40, 70, 48, 76, 66, 68, 86, 46, 94, 24, 86}},
    {11, 11, {66, 8, 44, 22, 30, 45, 26, 68, 34, 87, 52, 93, 70, 84, 73, 66, 62, 53, 44, 53, 28, 66}},
    {4, 4, {22, 9, 78, 9, 58, 45, 44, 93}},
    {13, 13, {50, 48, 32, 38, 30, 20, 50, 7, 70, 20, 68, 38, 50, 48, 28, 62, 26, 82, 50, 94, 74, 82, 72, 62, 50, 48}},
    {10, 10, {72, 32, 62, 48, 42, 48, 28, 34, 32, 15, 50, 7, 68, 14, 73, 32, 70, 60, 62, 94}},
}};

/// How strongly images differ. Chosen so that a linear classifier stays below 92 % and SimpleCNN passes 97 % after one
/// epoch of 60,000.
constexpr float kJitter = 0.07f;  // how far a corner moves, in units of the box
constexpr float kTurn = 0.18f;    // tangent of half the angle: up to 20 degrees
constexpr float kShear = 0.25f;
constexpr float kShift = 3.0f;                // pixels
constexpr float kNarrow = 15, kWide = 22;     // pixels that the box spans
constexpr float kThin = 0.5f, kThick = 1.6f;  // half the width of the pen, pixels
constexpr float kNoise = 110;                 // on the scale from 0 to 255
constexpr float kFaint = 110;                 // the faintest ink, on the scale from 0 to 255

/// Maps the box of a glyph to pixels.
class Affine {
 public:
  explicit Affine(Philox& random) {
    // A rotation without sine and cosine, as their last bits differ between machines: t is the tangent of half the
    // angle.
    const float t = random.uniform(-kTurn, kTurn), scale = 1 / (1 + t * t);
    const float cosine = (1 - t * t) * scale, sine = 2 * t * scale, shear = random.uniform(-kShear, kShear);
    const float width = random.uniform(kNarrow, kWide), height = random.uniform(kNarrow, kWide);
    xx_ = cosine * width;
    xy_ = (shear * cosine - sine) * height;
    yx_ = sine * width;
    yy_ = (shear * sine + cosine) * height;
    x_ = kSide / 2.0f + random.uniform(-kShift, kShift);
    y_ = kSide / 2.0f + random.uniform(-kShift, kShift);
  }
  Point operator()(Point p) const {
    const float x = p.x - 0.5f, y = p.y - 0.5f;
    return {xx_ * x + xy_ * y + x_, yx_ * x + yy_ * y + y_};
  }

 private:
  float xx_, xy_, yx_, yy_, x_, y_;
};

using Field = std::array<float, kPixels>;  // squared distance of each pixel's centre to the nearest stroke

/// First and one past the last pixel within `reach` of [a, b].
std::pair<int, int> pixels_near(float a, float b, float reach) {
  const float low = std::min(a, b) - reach, high = std::max(a, b) + reach;
  return {static_cast<int>(std::clamp(low, 0.0f, static_cast<float>(kSide))),
          static_cast<int>(std::clamp(high + 1, 0.0f, static_cast<float>(kSide)))};
}

void add_segment(Field& field, Point a, Point b, float reach) {
  const auto [x_begin, x_end] = pixels_near(a.x, b.x, reach);
  const auto [y_begin, y_end] = pixels_near(a.y, b.y, reach);
  const float dx = b.x - a.x, dy = b.y - a.y, inverse = 1 / std::max(dx * dx + dy * dy, 1e-6f);
  for (int y = y_begin; y < y_end; ++y) {
    float* const row = field.data() + y * kSide;
    const float py = static_cast<float>(y) + 0.5f - a.y;
    for (int x = x_begin; x < x_end; ++x) {
      const float px = static_cast<float>(x) + 0.5f - a.x;
      const float along = std::min(std::max((px * dx + py * dy) * inverse, 0.0f), 1.0f);
      const float ex = px - along * dx, ey = py - along * dy;
      row[x] = std::min(row[x], ex * ex + ey * ey);
    }
  }
}

/// Pixels from distances: full ink within the pen, a soft edge of one pixel, and noise from one byte of a word each.
void ink_in(Philox& random, const Field& field, float pen, float ink, std::uint8_t* pixels) {
  constexpr std::size_t kPerWord = 4;
  for (std::size_t i = 0; i < kPixels; i += kPerWord) {
    const std::uint32_t word = random.word();
    for (std::size_t j = 0; j < kPerWord; ++j) {
      const float noise = static_cast<float>(word >> (8 * j) & 255U) * (1.0f / 256) - 0.5f;
      const float edge = std::min(std::max(pen + 0.5f - std::sqrt(field[i + j]), 0.0f), 1.0f);
      pixels[i + j] = static_cast<std::uint8_t>(std::min(std::max(ink * edge + kNoise * noise, 0.0f), 255.0f));
    }
  }
}

void draw(Philox& random, int digit, std::uint8_t* pixels) {
  const Glyph& glyph = kGlyphs[static_cast<std::size_t>(digit)];
  const Affine map(random);
  const float pen = random.uniform(kThin, kThick), ink = random.uniform(kFaint, 255);
  Field field;
  field.fill(kFar);
  Point last{};
  for (std::size_t i = 0; i < glyph.corners; ++i) {
    const float x = 0.01f * glyph.at[2 * i] + random.uniform(-kJitter, kJitter);
    const float y = 0.01f * glyph.at[2 * i + 1] + random.uniform(-kJitter, kJitter);
    const Point p = map({x, y});
    if (i > 0 && i != glyph.second) add_segment(field, last, p, pen + 1);
    last = p;
  }
  ink_in(random, field, pen, ink, pixels);
}

}  // namespace

ImageDataset draw_digits(std::uint64_t seed, std::int64_t count, std::int64_t first) {
  require<UsageError>(count >= 0 && first >= 0, "cannot draw ", count, " digits from number ", first, " on");
  const Tensor images = empty({count, 1, kSide, kSide}, DType::u8), labels = empty({count}, DType::i64);
  for (std::int64_t i = 0; i < count; ++i) {
    Philox random(seed, static_cast<std::uint64_t>(first + i));
    const auto digit = static_cast<int>(random.below(10));
    labels.data<std::int64_t>()[i] = digit;
    draw(random, digit, images.data<std::uint8_t>() + static_cast<std::size_t>(i) * kPixels);
  }
  return {images, labels};
}

}  // namespace duet::data
