// States of a while: one that lasts while any hold on it lives, and another value within a scope.
#pragma once

#include <memory>
#include <utility>

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

/// Sets the variable, which must outlive it, and puts the value from before back when it goes.
template <class T>
class ScopedValue {
 public:
  ScopedValue(T& variable, T value) : variable_(variable), before_(std::exchange(variable, std::move(value))) {}
  ~ScopedValue() { variable_ = std::move(before_); }
  ScopedValue(const ScopedValue&) = delete;
  ScopedValue& operator=(const ScopedValue&) = delete;

 private:
  T& variable_;
  T before_;
};

}  // namespace duet
