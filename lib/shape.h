// Shapes of tensors: up to six sizes, kept inline so that a shape never allocates.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <string>

namespace duet {

/// Sizes of a tensor, outermost first: (N, C, H, W). A rank of 0 is a scalar with one element.
class Shape {
 public:
  static constexpr int kMaxRank = 6;

  Shape() = default;
  /// Throws ShapeError past kMaxRank sizes or for a negative size.
  Shape(std::initializer_list<std::int64_t> sizes);

  int rank() const { return rank_; }
  /// Size of dimension `d`; negative `d` counts from the end. Throws ShapeError out of range.
  std::int64_t operator[](int d) const;
  /// A copy with dimension `d` replaced.
  Shape with(int d, std::int64_t size) const;
  void append(std::int64_t size);
  /// Product of all sizes.
  std::int64_t count() const;
  /// Product of the sizes after the first `d`.
  std::int64_t count_from(int d) const;
  const std::int64_t* begin() const { return sizes_.data(); }
  const std::int64_t* end() const { return sizes_.data() + rank_; }

  bool operator==(const Shape& other) const;
  /// "[4, 1, 28, 28]".
  std::string str() const;

 private:
  std::array<std::int64_t, kMaxRank> sizes_{};
  int rank_ = 0;
};

std::ostream& operator<<(std::ostream& out, const Shape& shape);

}  // namespace duet
