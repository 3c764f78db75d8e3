#include "lib/data/images/resizer.h"

#include <cstddef>

namespace duet::data {
namespace {

void make_room(std::vector<std::uint8_t>& bytes, std::int64_t needed) {
  const std::size_t size = static_cast<std::size_t>(needed) + Pixels::kSlack;
  if (bytes.size() < size) bytes.resize(size);
}

/// Rows before columns where that takes away most: Pillow 13; its older versions never do.
bool down_first(const View& view) {
  const std::int64_t rows_less = view.crop.height - view.height, columns_less = view.crop.width - view.width;
  return rows_less > 0 && rows_less > 2 * columns_less;
}

}  // namespace

Region Resizer::prepare(const View& view) {
  view_ = view;
  weigh(across_, view.crop.width, view.width, view.window.x, view.window.width);
  weigh(down_, view.crop.height, view.height, view.window.y, view.window.height);
  return {view.crop.x + across_.first, view.crop.y + down_.first, across_.end - across_.first, down_.end - down_.first};
}

const std::uint8_t* Resizer::run(const Pixels& source) {
  const std::int64_t columns = across_.end - across_.first, rows = down_.end - down_.first;
  const RowsIn in{source.at(view_.crop.x + across_.first, view_.crop.y + down_.first),
                  static_cast<std::int64_t>(source.row_bytes())};
  make_room(out_, 3 * across_.size() * down_.size());
  if (down_first(view_)) {
    make_room(between_, 3 * columns * down_.size());
    resample_down(down_, in, 3 * columns, between_.data());
    resample_across(across_, {between_.data(), 3 * columns}, down_.size(), out_.data());
  } else {
    make_room(between_, 3 * across_.size() * rows);
    resample_across(across_, in, rows, between_.data());
    resample_down(down_, {between_.data(), 3 * across_.size()}, 3 * across_.size(), out_.data());
  }
  return out_.data();
}

}  // namespace duet::data
