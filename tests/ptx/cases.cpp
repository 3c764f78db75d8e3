#include "tests/ptx/cases.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/backend/cuda/launch.h"
#include "tests/support/catch2.h"
#include "tests/support/ptx/cudart.h"
#include "tests/support/ptx/interpreter.h"
#include "tests/support/ptx/registry.h"

// What the launch functions need of the module.
namespace duet::cuda {
void check(cudaError_t status, const char*) { REQUIRE(status == cudaSuccess); }
const char* current_operator() { return "a test"; }
}  // namespace duet::cuda

namespace ptx_cases {
namespace {

int setting(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

struct Tally {
  long cases = 0;
  double worst = 0;  // error, in units
};
std::map<std::string, Tally> tallies;         // by function
std::map<std::string, std::uint64_t> faults;  // by kind
long values = 0;

/// Seeds by name: a case has the same numbers whatever runs beside it.
std::uint64_t hash(const std::string& text) {
  std::uint64_t h = 0xcbf29ce484222325;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return h;
}

std::string name_of(const std::string& function, std::initializer_list<std::int64_t> shape) {
  std::string name = function + "(";
  for (const std::int64_t n : shape) name += (name.back() == '(' ? "" : ", ") + std::to_string(n);
  return name + ")";
}

double millions(std::uint64_t n) { return static_cast<double>(n) / 1e6; }

/// What ran; with DUET_PTX_UNCOVERED=1 also the instructions that did not.
void print_summary() {
  long cases = 0;
  for (const auto& [function, tally] : tallies) {
    std::printf("%s: %ld cases, error up to %.2f units\n", function.c_str(), tally.cases, tally.worst);
    cases += tally.cases;
  }
  if (duet_ptx::device().statistics.launches == 0) return;
  std::size_t launched = 0, ran = 0, all = 0;
  for (const duet_ptx::RegisteredKernel& kernel : duet_ptx::registered_kernels()) {
    if (kernel.launches == 0) continue;
    const auto [covered, total] = duet_ptx::covered(*kernel.kernel);
    ++launched, ran += covered, all += total;
    if (setting("DUET_PTX_UNCOVERED", 0) == 0) continue;
    for (const std::string& text : duet_ptx::not_covered(*kernel.kernel))
      std::printf("never ran: %s %s\n", kernel.name.c_str(), text.c_str());
  }
  for (const auto& [kind, count] : faults)
    std::printf("fault: %s x %llu\n", kind.c_str(), static_cast<unsigned long long>(count));
  const duet_ptx::Statistics& s = duet_ptx::device().statistics;
  std::printf("compute_%s: %ld cases, %ld values, %zu of %zu kernels, %llu launches, %.2f million blocks\n",
              duet_ptx::architecture().c_str(), cases, values, launched, duet_ptx::registered_kernels().size(),
              static_cast<unsigned long long>(s.launches), millions(s.blocks));
  std::printf(
      "millions: %.1f threads, %.1f instructions, %.2f barriers, %.2f shuffles, %.2f products of matrices, %.0f bytes "
      "accessed\n",
      millions(s.threads), millions(s.instructions), millions(s.barriers), millions(s.shuffles), millions(s.products),
      millions(s.global_bytes));
  std::printf("%zu of %zu instructions ran (%.1f %%)\n", ran, all,
              100 * static_cast<double>(ran) / static_cast<double>(all));
}
const bool summarised = (duet_test::when_tests_end(&print_summary), true);

}  // namespace

Case::Case(std::string function, std::initializer_list<std::int64_t> shape)
    : function_(std::move(function)), name_(name_of(function_, shape)), random_(hash(name_)) {
  ++tallies[function_].cases;
}

Case::~Case() {
  for (const auto& array : arrays_) duet_ptx::device().memory.remove(array->begin);
}

std::shared_ptr<Storage> Case::make(const char* name, std::size_t count, std::size_t element, int offset) {
  auto storage = std::make_shared<Storage>();
  storage->size = count * element;
  storage->bytes.resize(storage->size + 768);
  const auto begin = reinterpret_cast<std::uintptr_t>(storage->bytes.data());
  const std::uintptr_t at = (begin + 255) / 256 * 256 + 256 + element * static_cast<std::size_t>(offset);
  storage->begin = storage->bytes.data() + (at - begin);
  duet_ptx::device().memory.add(storage->begin, storage->size, static_cast<unsigned>(std::min<std::size_t>(element, 8)),
                                name, false);
  arrays_.push_back(storage);
  return storage;
}

float Case::normal() {
  constexpr double kTwoPi = 6.283185307179586;
  return static_cast<float>(std::sqrt(-2 * std::log(1 - random_.uniform())) * std::cos(kTwoPi * random_.uniform()));
}

float Case::odd() {
  const std::uint64_t kind = below(40);
  if (kind < 5) return std::initializer_list<float>{kNaN, kInfinity, -kInfinity, 0.0f, -0.0f}.begin()[kind];
  return kind < 12 ? static_cast<float>(static_cast<int>(below(5)) - 2) : normal();
}

Floats Case::normal(const char* name, std::size_t count, int offset) {
  return input<float>(name, count, offset, [this](std::size_t) { return normal(); });
}
Floats Case::odd(const char* name, std::size_t count, int offset) {
  return input<float>(name, count, offset, [this](std::size_t) { return odd(); });
}
Floats Case::uniform(const char* name, std::size_t count, double low, double high, int offset) {
  return input<float>(name, count, offset, [&](std::size_t) { return static_cast<float>(uniform(low, high)); });
}
Floats Case::constant(const char* name, float value) {
  return input<float>(name, 1, 0, [value](std::size_t) { return value; });
}
Array<std::uint8_t> Case::places(const char* name, std::size_t count, int places, int offset) {
  return input<std::uint8_t>(name, count, offset, [&](std::size_t) {
    return static_cast<std::uint8_t>(below(3) == 0 ? 255 : below(static_cast<std::uint64_t>(places)));
  });
}

duet::cuda::kernels::StepDraw Case::draw(bool counted, std::uint32_t threshold) {
  duet::cuda::kernels::StepDraw draw{};
  draw.draw.seed = random_.random64();
  draw.draw.step = below(1000) + (counted ? 0xfffffff0 : 0);
  draw.draw.first_row = below(100000);
  draw.draw.layer = static_cast<std::uint32_t>(below(5));
  draw.draw.threshold = threshold;
  if (counted) draw.counter = input<std::uint64_t>("counter", 1, 0, [](std::size_t) { return 77; }).data();
  return draw;
}

void Case::run(const std::function<void()>& work, bool exact) {
  duet_ptx::Device& device = duet_ptx::device();
  const int orders = setting("DUET_PTX_ORDERS", 3);
  device.options.approximate_ulps = exact ? 0 : setting("DUET_PTX_NOISE", 0);
  std::vector<std::vector<unsigned char>> bits;
  for (int order = 0; order < orders; ++order) {
    for (const auto& array : arrays_) {
      std::fill_n(array->begin, array->size, static_cast<unsigned char>(0xff));  // NaN
      std::copy(array->first.begin(), array->first.end(), array->begin);
      device.memory.mark(array->begin, array->size, !array->first.empty());
    }
    device.options.seed = order == 0 ? 0 : hash(name_) + static_cast<unsigned>(order);
    device.findings.clear();
    work();
    for (const auto& [kind, count] : device.findings.counts) faults[kind] += count - 1;
    for (const auto& [kind, count] : device.findings.counts) fail(kind, device.findings.texts[0]);
    std::vector<unsigned char> now;
    for (const auto& array : arrays_) now.insert(now.end(), array->begin, array->begin + array->size);
    if (order > 0 && device.options.approximate_ulps == 0 && now != bits[0])
      fail("bits depend on the order of threads");
    bits.push_back(std::move(now));
  }
}

void Case::fail(const std::string& kind, const std::string& text) {
  ++faults[kind];
  if (!failed_) FAIL_CHECK(name_ << ": " << (text.empty() ? kind : text));
  failed_ = true;
}

void Case::expect(const char* what, std::size_t i, float got, Expected expected, double units) {
  ++values;
  if (std::isnan(expected.value) && std::isnan(got)) return;
  if (std::isinf(expected.value) && got == static_cast<float>(expected.value)) return;
  const double unit = std::max(expected.scale, std::fabs(expected.value)) * std::ldexp(1.0, -24) + 1e-44;
  const double error = std::fabs(static_cast<double>(got) - expected.value) / unit;
  double& worst = tallies[function_].worst;
  if (error <= units) {
    worst = std::max(worst, error);
  } else {
    char text[200];
    std::snprintf(text, sizeof text, "%s[%zu] = %.9g, expected %.9g, %.1f units", what, i, static_cast<double>(got),
                  expected.value, error);
    fail("wrong value", text);
  }
}

void Case::expect_equal(const char* what, std::size_t i, std::int64_t got, std::int64_t expected) {
  ++values;
  if (got == expected) return;
  fail("wrong value", std::string(what) + "[" + std::to_string(i) + "] = " + std::to_string(got) + ", expected " +
                          std::to_string(expected));
}

namespace {

/// Fails unless there are kernels for which wanted() is true, and each was launched.
template <class Wanted>
void check_launches(Wanted wanted) {
  int kernels = 0;
  for (const duet_ptx::RegisteredKernel& kernel : duet_ptx::registered_kernels()) {
    if (!wanted(kernel)) continue;
    ++kernels;
    INFO("kernel " << kernel.name);
    CHECK(kernel.launches > 0);
  }
  CHECK(kernels > 0);
}

}  // namespace

void check_all_launched(std::string_view source, std::initializer_list<std::string_view> others) {
  check_launches([&](const duet_ptx::RegisteredKernel& kernel) {
    return kernel.source == source && std::ranges::none_of(others, [&](std::string_view other) {
             return std::string_view(kernel.name).starts_with(other);
           });
  });
}

void check_launched(std::initializer_list<std::string_view> kernels) {
  for (const std::string_view name : kernels)
    check_launches(
        [&](const duet_ptx::RegisteredKernel& kernel) { return std::string_view(kernel.name).starts_with(name); });
}

double bfloat16(double x) {
  const auto value = static_cast<float>(x);
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if (std::isnan(value)) return x;
  const std::uint32_t low = bits & 0xffff, up = bits & 0xffff0000;
  bits = low > 0x8000 || (low == 0x8000 && (up & 0x10000) != 0) ? up + 0x10000 : up;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return static_cast<double>(result);
}

PhiloxWords philox(PhiloxWords c, std::uint64_t key) {
  auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round, k0 += 0x9e3779b9, k1 += 0xbb67ae85) {
    const std::uint64_t p = std::uint64_t{0xd2511f53} * c.at[0], q = std::uint64_t{0xcd9e8d57} * c.at[2];
    c = {{static_cast<std::uint32_t>(q >> 32) ^ c.at[1] ^ k0, static_cast<std::uint32_t>(q),
          static_cast<std::uint32_t>(p >> 32) ^ c.at[3] ^ k1, static_cast<std::uint32_t>(p)}};
  }
  return c;
}

bool keeps(const duet::cuda::kernels::StepDraw& counted, std::int64_t row, std::int64_t element) {
  const auto& draw = counted.draw;
  const std::uint64_t step = draw.step + (counted.counter == nullptr ? 0 : *counted.counter);
  const auto chunk = static_cast<std::uint32_t>(element / 128);
  const auto lane = static_cast<std::uint32_t>(element % 16);
  const auto half = static_cast<std::size_t>(element % 128 / 16);
  const PhiloxWords words =
      philox({{16 * chunk + lane, static_cast<std::uint32_t>(draw.first_row + static_cast<std::uint64_t>(row)),
               static_cast<std::uint32_t>(step), draw.layer}},
             draw.seed);
  const std::uint32_t word = words.at[half / 2];
  return (half % 2 != 0 ? word >> 16 : word & 0xffff) >= draw.threshold;
}

}  // namespace ptx_cases
