#include "lib/data/images/drawn_images.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "lib/base/sha256.h"
#include "lib/error.h"
#include "lib/parse_number.h"
#include "lib/random.h"

namespace duet::data {
namespace {

constexpr std::int64_t kShapes = 10, kTextures = 10, kMostClasses = 1000, kLeastSide = 8, kMostSide = 4096;
constexpr std::int64_t kTestDrawings = std::int64_t{1} << 40;  // behind all that is drawn for training
constexpr std::string_view kDrawnName = "synthetic";           // begins the names of these data sets, before a colon
constexpr std::uint64_t kPurpose = 0x64726177;                 // keeps the draws apart from others of the same seed

// How strongly images differ; lengths in units of the image's side.
constexpr float kMostShift = 0.12f;
constexpr float kSmall = 0.26f, kLarge = 0.40f;  // half the shape's side
constexpr float kMostTurn = 0.12f;               // tangent of half the angle: up to 14 degrees
constexpr float kFine = 0.10f, kCoarse = 0.15f;  // the period of a texture
constexpr float kHueJitter = 0.03f;
constexpr float kDark = 0.35f;    // share of the colour where the texture is low
constexpr float kMostNoise = 90;  // on the scale from 0 to 255

using Colour = std::array<float, 3>;  // 0 to 255

/// The colour of a hue in turns; `pale` is the share of white.
Colour colour(float hue, float pale, float value) {
  Colour out;
  for (std::size_t c = 0; c < 3; ++c) {
    const float turned = hue + static_cast<float>(c) / 3, part = turned - std::floor(turned);
    const float pure = std::clamp(std::abs(part * 6 - 3) - 1, 0.0f, 1.0f);
    out[c] = 255 * value * (pale + (1 - pale) * pure);
  }
  return out;
}

/// From 1 down to 0 and back in one period.
float wave(float x) { return std::abs(2 * (x - std::floor(x)) - 1); }

float high(bool condition) { return condition ? 1.0f : 0.0f; }

/// How far inside the shape the point lies, in units of its half side; below 0 outside. v points down.
float depth(std::int64_t shape, float u, float v) {
  const float x = std::abs(u), y = std::abs(v), box = std::max(x, y);
  switch (shape) {
    case 0: return 0.95f - std::sqrt(u * u + v * v);
    case 1: return 0.26f - std::abs(std::sqrt(u * u + v * v) - 0.7f);
    case 2: return 0.85f - box;
    case 3: return 0.2f - std::abs(box - 0.7f);
    case 4: return std::min(0.8f - v, 0.45f * (v + 1) - 0.9f * x);
    case 5: return std::min(0.8f + v, 0.45f * (1 - v) - 0.9f * x);
    case 6: return std::min(0.95f - box, 0.28f - std::min(x, y));
    case 7: {
      const float p = 0.7f * std::abs(u + v), q = 0.7f * std::abs(u - v);
      return std::min(0.95f - std::max(p, q), 0.28f - std::min(p, q));
    }
    case 8: return std::min(0.9f - x, 0.22f - std::abs(y - 0.5f));
    default: return std::min(0.9f - y, 0.22f - std::abs(x - 0.5f));
  }
}

/// 0 to 1; a and b are in periods, from the middle of the shape.
float texture(std::int64_t kind, float a, float b) {
  switch (kind) {
    case 0: return 1;
    case 1: return high(wave(b) > 0.5f);
    case 2: return high(wave(a) > 0.5f);
    case 3: return high((wave(a) > 0.5f) != (wave(b) > 0.5f));
    case 4: return high(wave(a) * wave(a) + wave(b) * wave(b) < 0.4f);
    case 5: return high(std::max(wave(a), wave(b)) < 0.7f);
    case 6: return high(wave(std::sqrt(a * a + b * b)) > 0.5f);
    case 7: return high(wave(a) + wave(b) > 1);
    case 8: return high(wave(b + 0.5f * wave(a)) > 0.5f);
    default: return std::clamp(0.5f + 0.2f * b, 0.0f, 1.0f);
  }
}

/// One drawing: what was drawn at random for it.
class Drawing {
 public:
  Drawing(Philox& random, const DrawnImagesOptions& options, std::int64_t label)
      : shape_(label % kShapes), texture_((label / kShapes + label) % kTextures) {
    const auto side = static_cast<float>(options.size);
    x_ = side * (0.5f + random.uniform(-kMostShift, kMostShift));
    y_ = side * (0.5f + random.uniform(-kMostShift, kMostShift));
    radius_ = side * random.uniform(kSmall, kLarge);
    // A rotation without sine and cosine, as their last bits differ between machines.
    const float t = random.uniform(-kMostTurn, kMostTurn);
    cosine_ = (1 - t * t) / (1 + t * t);
    sine_ = 2 * t / (1 + t * t);
    period_ = side * random.uniform(kFine, kCoarse);
    phase_a_ = random.uniform();
    phase_b_ = random.uniform();
    const float any = random.uniform(), jitter = random.uniform(-kHueJitter, kHueJitter);
    const bool named = options.classes > kShapes * kTextures;
    const float hue = named ? static_cast<float>(label / (kShapes * kTextures)) / 10 + jitter : any;
    // Drawn one by one: compilers differ in the order of arguments.
    const float bright = random.uniform(0.7f, 1), pale = random.uniform(0, 0.3f);
    bright_ = colour(hue, pale, bright);
    const float dark = random.uniform(0.05f, 0.4f), grey = random.uniform(0, 0.8f), ground = random.uniform();
    ground_ = colour(ground, grey, dark);
  }

  Colour at(std::int64_t column, std::int64_t row) const {
    const float dx = static_cast<float>(column) + 0.5f - x_, dy = static_cast<float>(row) + 0.5f - y_;
    const float u = cosine_ * dx + sine_ * dy, v = cosine_ * dy - sine_ * dx;
    const float cover = std::clamp(depth(shape_, u / radius_, v / radius_) * radius_ + 0.5f, 0.0f, 1.0f);
    if (cover <= 0) return ground_;
    // Rings and the gradient lie around the middle of the shape.
    const bool centred = texture_ == 6 || texture_ == 9;
    const float level =
        texture(texture_, u / period_ + (centred ? 0 : phase_a_), v / period_ + (centred ? 0 : phase_b_));
    const float light = cover * (kDark + (1 - kDark) * level);
    Colour out;
    for (std::size_t c = 0; c < 3; ++c) out[c] = (1 - cover) * ground_[c] + light * bright_[c];
    return out;
  }

 private:
  std::int64_t shape_, texture_;
  float x_, y_, radius_, cosine_, sine_, period_, phase_a_, phase_b_;
  Colour bright_, ground_;
};

struct NamedNumber {
  std::string_view name;
  std::int64_t value, least, most;
  bool given = false;
};

void read_number(std::span<NamedNumber> fields, std::string_view item) {
  const std::size_t equals = item.find('=');
  const std::string_view name = item.substr(0, equals);
  const auto field =
      std::find_if(fields.begin(), fields.end(), [&](const NamedNumber& one) { return one.name == name; });
  require<UsageError>(field != fields.end(), "synthetic images have no field '", name,
                      "'; expected classes, size, train, test or seed, as in synthetic:classes=100,size=64");
  require<UsageError>(!field->given, "the field '", name, "' of synthetic images is given twice");
  const std::string_view text = equals == std::string_view::npos ? "" : item.substr(equals + 1);
  const auto number = parse_number<std::int64_t>(text);
  require<UsageError>(number && field->least <= *number && *number <= field->most, "the field '", name,
                      "' of synthetic images is '", text, "', expected a whole number from ", field->least, " to ",
                      field->most);
  field->value = *number;
  field->given = true;
}

}  // namespace

DrawnImages::DrawnImages(const DrawnImagesOptions& options)
    : options_(options),
      normalisers_{Normaliser(options.pixels[0]), Normaliser(options.pixels[1]), Normaliser(options.pixels[2])} {
  require<UsageError>(1 <= options.classes && options.classes <= kMostClasses, "drawn images have 1 to ", kMostClasses,
                      " classes, got ", options.classes);
  require<UsageError>(kLeastSide <= options.size && options.size <= kMostSide, "drawn images have ", kLeastSide, " to ",
                      kMostSide, " rows and columns, got ", options.size);
  require<UsageError>(options.count >= 1 && options.first >= 0, "got ", options.count, " drawn images from number ",
                      options.first, " on, expected 1 or more from 0 or more on");
}

std::uint64_t DrawnImages::data_hash() const {
  std::uint64_t hash = options_.seed;
  for (const std::int64_t number : {options_.classes, options_.size, options_.count, options_.first})
    hash = mixed(hash, static_cast<std::uint64_t>(number));
  return hash;
}

void DrawnImages::draw(std::int64_t index, Pixels& pixels) const {
  Philox random(options_.seed ^ kPurpose, static_cast<std::uint64_t>(options_.first + index));
  const Drawing drawing(random, options_, label(index));
  pixels.lay_out({0, 0, options_.size, options_.size});
  std::uint8_t* out = pixels.bytes.data();
  for (std::int64_t row = 0; row < options_.size; ++row) {
    for (std::int64_t column = 0; column < options_.size; ++column) {
      const std::uint32_t word = random.word();
      const Colour colour = drawing.at(column, row);
      for (std::size_t c = 0; c < 3; ++c) {
        const float noise = static_cast<float>(word >> (8 * c) & 255U) * (1.0f / 256) - 0.5f;
        *out++ = static_cast<std::uint8_t>(std::clamp(colour[c] + kMostNoise * noise, 0.0f, 255.0f));
      }
    }
  }
}

Pixels DrawnImages::draw(std::int64_t index) const {
  check({&index, 1});
  Pixels pixels;
  draw(index, pixels);
  return pixels;
}

void DrawnImages::fetch(std::span<const std::int64_t> indices, const Tensor& samples, const Tensor& labels) const {
  check(*this, indices, samples, labels);
  Pixels pixels;
  const std::int64_t plane = options_.size * options_.size;
  float* out = samples.data<float>();
  for (std::size_t row = 0; row < indices.size(); ++row) {
    draw(indices[row], pixels);
    if (labels.defined()) labels.data<std::int64_t>()[row] = label(indices[row]);
    for (std::size_t c = 0; c < 3; ++c) {
      for (std::int64_t i = 0; i < plane; ++i)
        *out++ = normalisers_[c](pixels.bytes[static_cast<std::size_t>(3 * i) + c]);
    }
  }
}

bool names_drawn_images(std::string_view text) { return text.substr(0, text.find(':')) == kDrawnName; }

DrawnSets parse_drawn_images(std::string_view text) {
  constexpr std::int64_t kMostCount = std::int64_t{1} << 31;
  std::array<NamedNumber, 5> fields = {{{"classes", 10, 1, kMostClasses},
                                        {"size", 224, kLeastSide, kMostSide},
                                        {"train", 10'000, 1, kMostCount},
                                        {"test", 1'000, 1, kMostCount},
                                        {"seed", 0, 0, std::numeric_limits<std::int64_t>::max()}}};
  require<UsageError>(names_drawn_images(text), "got '", text,
                      "', expected synthetic, or synthetic:classes=100,size=64");
  for (text.remove_prefix(kDrawnName.size()); !text.empty();) {
    text.remove_prefix(1);
    const std::string_view item = text.substr(0, text.find(','));
    read_number(fields, item);
    text.remove_prefix(item.size());
  }
  DrawnSets sets;
  sets.train = {.classes = fields[0].value,
                .size = fields[1].value,
                .count = fields[2].value,
                .seed = static_cast<std::uint64_t>(fields[4].value)};
  sets.test = sets.train;
  sets.test.count = fields[3].value;
  sets.test.first = kTestDrawings;
  return sets;
}

}  // namespace duet::data
