// Cases for the launch functions of lib/backend/cuda/kernels/kernels.h, run on the interpreter of PTX.
//
// A case makes arrays, launches in several orders of threads, which must give the same bits and no finding, and
// compares the results with loops in double that the tests write from the operators' definitions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/backend/cuda/kernels/kernels.h"
#include "lib/random.h"

namespace ptx_cases {

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kScale = 1.25f;  // of what a dropout keeps
inline constexpr int kNoPlace = 255;    // in a pool's window: no gradient goes there

/// What a result should be, and the size of all that was added up for it.
struct Expected {
  double value = 0, scale = 0;
  void add(double term) {
    value += term;
    scale += term < 0 ? -term : term;
  }
};

/// An array of the device; nothing around it may be touched.
struct Storage {
  std::vector<unsigned char> bytes;
  unsigned char* begin = nullptr;
  std::size_t size = 0;
  std::vector<unsigned char> first;  // its bytes before a run; empty: not initialised
};

template <class T>
class Array {
 public:
  Array() = default;  // a null pointer
  explicit Array(std::shared_ptr<Storage> storage) : storage_(std::move(storage)) {}
  T* data() const { return storage_ == nullptr ? nullptr : reinterpret_cast<T*>(storage_->begin); }
  std::size_t size() const { return storage_ == nullptr ? 0 : storage_->size / sizeof(T); }
  explicit operator bool() const { return storage_ != nullptr; }
  /// After the run, and before it.
  T operator[](std::size_t i) const { return data()[i]; }
  T first(std::size_t i) const {
    T value;
    std::memcpy(&value, storage_->first.data() + i * sizeof(T), sizeof value);
    return value;
  }

 private:
  std::shared_ptr<Storage> storage_;
};
using Floats = Array<float>;

class Case {
 public:
  Case(std::string function, std::initializer_list<std::int64_t> shape);
  ~Case();
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;

  // Arrays `offset` elements past a multiple of 256 bytes. Empty ones have addresses, too.
  template <class T>
  Array<T> output(const char* name, std::size_t count, int offset = 0) {
    return Array<T>(make(name, count, sizeof(T), offset));
  }
  template <class T>
  Array<T> input(const char* name, std::size_t count, int offset, const std::function<T(std::size_t)>& value) {
    const std::shared_ptr<Storage> storage = make(name, count, sizeof(T), offset);
    storage->first.resize(storage->size);
    for (std::size_t i = 0; i < count; ++i) {
      const T element = value(i);
      std::memcpy(storage->first.data() + i * sizeof(T), &element, sizeof element);
    }
    return Array<T>(storage);
  }
  Floats output(const char* name, std::size_t count, int offset = 0) { return output<float>(name, count, offset); }
  Floats normal(const char* name, std::size_t count, int offset = 0);
  Floats uniform(const char* name, std::size_t count, double low, double high, int offset = 0);
  /// With NaN, infinities, zeros of both signs and equal values here and there.
  Floats odd(const char* name, std::size_t count, int offset = 0);
  Floats constant(const char* name, float value);
  /// Places in windows of `places` elements, and 255 for a third of them.
  Array<std::uint8_t> places(const char* name, std::size_t count, int places, int offset = 0);
  /// A draw of dropout; its step comes from a counter in part.
  duet::cuda::kernels::StepDraw draw(bool counted, std::uint32_t threshold);

  double uniform(double low, double high) { return low + (high - low) * random_.uniform(); }
  float normal();
  float odd();
  std::uint64_t below(std::uint64_t end) { return random_.random64() % end; }

  /// exact: approximate instructions give the nearest float, whatever DUET_PTX_NOISE says.
  void run(const std::function<void()>& work, bool exact = false);

  /// Within `units` * 2^-24 * (the larger of scale and value) of the value; NaN for NaN, infinity for infinity.
  void expect(const char* what, std::size_t i, float got, Expected expected, double units);
  void expect(const char* what, std::size_t i, float got, double expected, double units) {
    expect(what, i, got, Expected{expected, 0}, units);
  }
  void expect_equal(const char* what, std::size_t i, std::int64_t got, std::int64_t expected);
  /// Fails the test for the first fault of a case; all are counted by kind.
  void fail(const std::string& kind, const std::string& text = "");

 private:
  std::shared_ptr<Storage> make(const char* name, std::size_t count, std::size_t element, int offset);

  std::string function_, name_;
  duet::Mt19937 random_;
  std::vector<std::shared_ptr<Storage>> arrays_;
  bool failed_ = false;
};

/// Fails unless each kernel of the source was launched, but those whose names begin as one of `others`, which are other
/// cases'.
void check_all_launched(std::string_view source, std::initializer_list<std::string_view> others = {});
/// Fails unless each kernel whose name begins as one of these was launched, and there are some for each.
void check_launched(std::initializer_list<std::string_view> kernels);

/// The nearest bfloat16, ties to even.
double bfloat16(double x);
/// Whether dropout keeps the element, by the paper of Philox4x32-10.
bool keeps(const duet::cuda::kernels::StepDraw& draw, std::int64_t row, std::int64_t element);
struct PhiloxWords {
  std::uint32_t at[4];
};
PhiloxWords philox(PhiloxWords counter, std::uint64_t key);

inline std::size_t size_of(std::int64_t n) { return static_cast<std::size_t>(n); }

}  // namespace ptx_cases
