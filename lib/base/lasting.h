// A state that lasts while any hold on it lives.
#pragma once

#include <memory>

namespace duet {

/// Lasts while one of its holds or a copy of it lives. Holds may be given up in any order, and outlive this. Used by
/// one thread at a time.
class Lasting {
 public:
  using Hold = std::shared_ptr<const void>;
  [[nodiscard]] Hold hold() {
    Hold held = held_.lock();
    if (held == nullptr) held_ = held = std::make_shared<const char>();
    return held;
  }
  bool lasts() const { return !held_.expired(); }

 private:
  std::weak_ptr<const void> held_;
};

}  // namespace duet
