#include "lib/shape.h"

#include <algorithm>
#include <ostream>

#include "lib/error.h"

namespace duet {

Shape::Shape(std::initializer_list<std::int64_t> sizes) {
  for (const std::int64_t size : sizes) append(size);
}

void Shape::append(std::int64_t size) {
  require<ShapeError>(rank_ < kMaxRank, "a shape has at most ", kMaxRank, " dimensions");
  require<ShapeError>(size >= 0, "dimension ", rank_, " of a shape is ", size, ", expected 0 or more");
  sizes_[static_cast<std::size_t>(rank_++)] = size;
}

std::int64_t Shape::operator[](int d) const {
  const int at = d < 0 ? d + rank_ : d;
  require<ShapeError>(at >= 0 && at < rank_, "dimension ", d, " asked of shape ", *this);
  return sizes_[static_cast<std::size_t>(at)];
}

Shape Shape::with(int d, std::int64_t size) const {
  Shape changed = *this;
  const int at = d < 0 ? d + rank_ : d;
  require<ShapeError>(at >= 0 && at < rank_ && size >= 0, "cannot set dimension ", d, " of shape ", *this, " to ",
                      size);
  changed.sizes_[static_cast<std::size_t>(at)] = size;
  return changed;
}

std::int64_t Shape::count() const { return count_from(0); }

std::int64_t Shape::count_from(int d) const {
  std::int64_t product = 1;
  for (int i = d; i < rank_; ++i) product *= sizes_[static_cast<std::size_t>(i)];
  return product;
}

bool Shape::operator==(const Shape& other) const { return std::equal(begin(), end(), other.begin(), other.end()); }

std::string Shape::str() const {
  std::string text = "[";
  for (int i = 0; i < rank_; ++i) {
    if (i) text += ", ";
    text += std::to_string(sizes_[static_cast<std::size_t>(i)]);
  }
  return text + "]";
}

std::ostream& operator<<(std::ostream& out, const Shape& shape) { return out << shape.str(); }

}  // namespace duet
