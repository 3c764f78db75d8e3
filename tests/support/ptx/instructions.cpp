#include "tests/support/ptx/instructions.h"

#include <cfenv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "tests/support/ptx/machine.h"

namespace duet_ptx {
namespace {

template <class T>
using Unsigned = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;

/// Integers wrap: their operations are those of unsigned words.
template <class T>
T sum(T a, T b) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<Unsigned<T>>(a) + static_cast<Unsigned<T>>(b));
  else
    return a + b;
}
template <class T>
T difference(T a, T b) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<Unsigned<T>>(a) - static_cast<Unsigned<T>>(b));
  else
    return a - b;
}
template <class T>
T product(T a, T b) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<Unsigned<T>>(a) * static_cast<Unsigned<T>>(b));
  else
    return a * b;
}

// Operations on values, of which the functions below make actions on slots.

constexpr auto kAdd = [](auto a, auto b) { return sum(a, b); };
constexpr auto kSubtract = [](auto a, auto b) { return difference(a, b); };
constexpr auto kMultiply = [](auto a, auto b) { return product(a, b); };
constexpr auto kMultiplyAdd = [](auto a, auto b, auto c) { return sum(product(a, b), c); };
constexpr auto kFma = [](auto a, auto b, auto c) { return std::fma(a, b, c); };
constexpr auto kFmaOfTermFirst = [](auto a, auto b, auto c) { return std::fma(-a, b, c); };
constexpr auto kFmaOfProductFirst = [](auto a, auto b, auto c) { return std::fma(a, b, -c); };
constexpr auto kAnd = []<class T>(T a, T b) { return static_cast<T>(a & b); };
constexpr auto kOr = []<class T>(T a, T b) { return static_cast<T>(a | b); };
constexpr auto kXor = []<class T>(T a, T b) { return static_cast<T>(a ^ b); };
constexpr auto kNot = []<class T>(T a) { return static_cast<T>(~a); };
constexpr auto kNotPredicate = [](std::uint64_t a) { return std::uint64_t{a == 0}; };
constexpr auto kMove = [](auto a) { return a; };
constexpr auto kNegateInteger = []<class T>(T a) { return difference(T(0), a); };
constexpr auto kAbsoluteInteger = []<class T>(T a) { return a < 0 ? difference(T(0), a) : a; };
constexpr auto kNegate = [](auto a) { return -a; };
constexpr auto kCopySign = [](auto sign, auto size) { return std::copysign(size, sign); };
constexpr auto kAbsolute = [](auto a) { return std::fabs(a); };
constexpr auto kSquareRoot = [](auto a) { return std::sqrt(a); };
constexpr auto kReciprocal = []<class T>(T a) { return T(1) / a; };
constexpr auto kDivide = [](auto a, auto b) { return a / b; };

/// The minimum of a number and NaN is the number, and -0 is less than 0.
constexpr auto kMinimum = []<class T>(T a, T b) {
  if (a != a) return b;
  if (b != b) return a;
  if constexpr (std::is_floating_point_v<T>)
    if (a == b) return std::signbit(a) ? a : b;
  return b < a ? b : a;
};
constexpr auto kMaximum = []<class T>(T a, T b) {
  if (a != a) return b;
  if (b != b) return a;
  if constexpr (std::is_floating_point_v<T>)
    if (a == b) return std::signbit(a) ? b : a;
  return a < b ? b : a;
};

constexpr auto kShiftLeft = []<class T>(T a, std::uint32_t by) {
  return by >= 8 * sizeof(T) ? T(0) : static_cast<T>(static_cast<Unsigned<T>>(a) << by);
};
constexpr auto kShiftRight = []<class T>(T a, std::uint32_t by) {
  constexpr std::uint32_t kMost = 8 * sizeof(T) - 1;
  return by > kMost && !std::is_signed_v<T> ? T(0) : static_cast<T>(a >> (by > kMost ? kMost : by));
};

/// Products of twice the width, or their upper half.
template <class T>
using Wide = std::conditional_t<std::is_signed_v<T>, std::conditional_t<sizeof(T) == 2, std::int32_t, std::int64_t>,
                                std::conditional_t<sizeof(T) == 2, std::uint32_t, std::uint64_t>>;
constexpr auto kMultiplyWide = []<class T>(T a, T b) { return product<Wide<T>>(a, b); };
constexpr auto kMultiplyHigh = []<class T>(T a, T b) {
  if constexpr (sizeof(T) < 8) {
    return static_cast<T>(kMultiplyWide(a, b) >> (8 * sizeof(T)));
  } else {
    __extension__ using Widest = std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
    return static_cast<T>((static_cast<Widest>(a) * static_cast<Widest>(b)) >> 64);
  }
};

template <auto kOperation, class T>
void unary(Thread& t, const Instruction& i) {
  set(t, i.to[0], kOperation(get<T>(t, i.from[0])));
}
template <auto kOperation, class T>
void binary(Thread& t, const Instruction& i) {
  set(t, i.to[0], kOperation(get<T>(t, i.from[0]), get<T>(t, i.from[1])));
}
template <auto kOperation, class T>
void ternary(Thread& t, const Instruction& i) {
  set(t, i.to[0], kOperation(get<T>(t, i.from[0]), get<T>(t, i.from[1]), get<T>(t, i.from[2])));
}
template <auto kOperation, class T>
void shift(Thread& t, const Instruction& i) {
  set(t, i.to[0], kOperation(get<T>(t, i.from[0]), get<std::uint32_t>(t, i.from[1])));
}
template <class T>
void multiply_add_wide(Thread& t, const Instruction& i) {
  set(t, i.to[0], sum(kMultiplyWide(get<T>(t, i.from[0]), get<T>(t, i.from[1])), get<Wide<T>>(t, i.from[2])));
}
template <class T>
void insert_bits(Thread& t, const Instruction& i) {  // bfi: the lower bits of a into b
  const std::uint64_t a = get<T>(t, i.from[0]);
  std::uint64_t result = get<T>(t, i.from[1]);
  const unsigned at = get<std::uint32_t>(t, i.from[2]) & 0xff, bits = get<std::uint32_t>(t, i.from[3]) & 0xff;
  for (unsigned k = 0; k < bits && at + k < 8 * sizeof(T); ++k) {
    const std::uint64_t bit = std::uint64_t{1} << (at + k);
    result = ((a >> k) & 1) != 0 ? result | bit : result & ~bit;
  }
  set(t, i.to[0], static_cast<T>(result));
}
template <class T>
void extract_bits(Thread& t, const Instruction& i) {  // bfe
  const unsigned at = get<std::uint32_t>(t, i.from[1]) & 0xff, bits = get<std::uint32_t>(t, i.from[2]) & 0xff;
  const std::uint64_t moved = at >= 64 ? 0 : std::uint64_t{get<T>(t, i.from[0])} >> at;
  set(t, i.to[0], static_cast<T>(bits >= 64 ? moved : moved & ((std::uint64_t{1} << bits) - 1)));
}
template <class T>
void choose(Thread& t, const Instruction& i) {
  set(t, i.to[0], get<T>(t, (t.slots[i.from[2]] & 1) != 0 ? i.from[0] : i.from[1]));
}
template <class T, bool kRemainder>
void divide_integers(Thread& t, const Instruction& i) {
  const T a = get<T>(t, i.from[0]), b = get<T>(t, i.from[1]);
  if (b == 0) t.grid->found("integer division by zero", t, i);
  if (b == 0) return set(t, i.to[0], static_cast<T>(-1));
  if (std::is_signed_v<T> && b == static_cast<T>(-1)) return set(t, i.to[0], kRemainder ? T(0) : difference(T(0), a));
  set(t, i.to[0], static_cast<T>(kRemainder ? a % b : a / b));
}

enum class Comparison { eq, ne, lt, le, gt, ge, equ, neu, ltu, leu, gtu, geu, num, nan };

/// How two numbers compare, given whether one of them is NaN.
template <Comparison kHow, class T>
bool compares(T a, T b, bool unordered) {
  switch (kHow) {
    case Comparison::eq: return !unordered && a == b;
    case Comparison::ne: return !unordered && a != b;
    case Comparison::lt: return !unordered && a < b;
    case Comparison::le: return !unordered && a <= b;
    case Comparison::gt: return !unordered && a > b;
    case Comparison::ge: return !unordered && a >= b;
    case Comparison::equ: return unordered || a == b;
    case Comparison::neu: return unordered || a != b;
    case Comparison::ltu: return unordered || a < b;
    case Comparison::leu: return unordered || a <= b;
    case Comparison::gtu: return unordered || a > b;
    case Comparison::geu: return unordered || a >= b;
    case Comparison::num: return !unordered;
    case Comparison::nan: return unordered;
  }
  return false;
}
template <Comparison kHow, class T>
void compare(Thread& t, const Instruction& i) {
  const T a = get<T>(t, i.from[0]), b = get<T>(t, i.from[1]);
  const std::uint64_t result = compares<kHow>(a, b, a != a || b != b) ? 1 : 0;
  set(t, i.to[0], result);
  if (i.to[1] != kNoSlot) set(t, i.to[1], 1 - result);
}

template <class To, class From>
void convert(Thread& t, const Instruction& i) {  // from integers, or to a float with rounding to nearest
  set(t, i.to[0], static_cast<To>(get<From>(t, i.from[0])));
}
template <class To, class From>
void convert_to_integer(Thread& t, const Instruction& i) {  // towards zero, clamped; NaN gives 0
  const From a = std::trunc(get<From>(t, i.from[0]));
  constexpr int kBits = 8 * sizeof(To) - (std::is_signed_v<To> ? 1 : 0);
  To result = 0;
  if (a >= std::ldexp(From(1), kBits))
    result = std::numeric_limits<To>::max();
  else if (a < static_cast<From>(std::numeric_limits<To>::min()))
    result = std::numeric_limits<To>::min();
  else if (a == a)
    result = static_cast<To>(a);
  set(t, i.to[0], result);
}
void saturate(Thread& t, const Instruction& i) {
  const float a = get<float>(t, i.from[0]);
  set(t, i.to[0], a > 0 ? (a > 1 ? 1.0f : a) : 0.0f);
}
void to_bfloat16(Thread& t, const Instruction& i) {
  const auto bits = get<std::uint32_t>(t, i.from[0]);
  const bool nan = (bits & 0x7fffffff) > 0x7f800000;
  set(t, i.to[0], static_cast<std::uint16_t>(nan ? 0x7fff : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16));
}
void from_bfloat16(Thread& t, const Instruction& i) {
  set(t, i.to[0], std::uint32_t{get<std::uint16_t>(t, i.from[0])} << 16);
}

void fma_down(Thread& t, const Instruction& i) {
  // volatile: the compiler must not move the operation out of the rounding mode.
  const volatile float a = get<float>(t, i.from[0]), b = get<float>(t, i.from[1]), c = get<float>(t, i.from[2]);
  std::fesetround(FE_DOWNWARD);
  const volatile float result = std::fma(a, b, c);
  std::fesetround(FE_TONEAREST);
  set<float>(t, i.to[0], result);
}

void add_towards_zero(Thread& t, const Instruction& i) {
  const volatile float a = get<float>(t, i.from[0]), b = get<float>(t, i.from[1]);  // as above
  std::fesetround(FE_TOWARDZERO);
  const volatile float result = a + b;
  std::fesetround(FE_TONEAREST);
  set<float>(t, i.to[0], result);
}

float flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }

/// Rounds `exact` and moves it at random by up to Options::approximate_ulps units in the last place.
float approximate(const Thread& t, double exact) {
  auto value = static_cast<float>(exact);
  const int most = t.grid->options.approximate_ulps;
  if (most == 0 || !std::isfinite(value) || value == 0) return value;
  const int moves = static_cast<int>(t.grid->random.next() % static_cast<unsigned>(2 * most + 1)) - most;
  const float towards = moves < 0 ? -std::numeric_limits<float>::infinity() : std::numeric_limits<float>::infinity();
  for (int k = 0; k < std::abs(moves); ++k) value = std::nextafter(value, towards);
  return value;
}
void exp2_approximate(Thread& t, const Instruction& i) {
  set(t, i.to[0], flushed(approximate(t, std::exp2(static_cast<double>(flushed(get<float>(t, i.from[0])))))));
}
void log2_approximate(Thread& t, const Instruction& i) {
  set(t, i.to[0], approximate(t, std::log2(static_cast<double>(flushed(get<float>(t, i.from[0]))))));
}
void reciprocal_approximate(Thread& t, const Instruction& i) {
  set(t, i.to[0], flushed(approximate(t, 1 / static_cast<double>(flushed(get<float>(t, i.from[0]))))));
}

template <class Whole, class Half>
void pack(Thread& t, const Instruction& i) {
  const auto low = static_cast<Whole>(get<Half>(t, i.from[0])), high = static_cast<Whole>(get<Half>(t, i.from[1]));
  set(t, i.to[0], static_cast<Whole>(low | high << (8 * sizeof(Half))));
}
template <class Whole, class Half>
void unpack(Thread& t, const Instruction& i) {
  const auto whole = get<Whole>(t, i.from[0]);
  if (i.to[0] != kNoSlot) set(t, i.to[0], static_cast<Half>(whole));
  if (i.to[1] != kNoSlot) set(t, i.to[1], static_cast<Half>(whole >> (8 * sizeof(Half))));
}

// --- the table: opcode without blanks -> action ---

using Table = std::unordered_map<std::string, Action>;

/// Calls `each` with a value of every integer type and its names; bNN is as uNN.
template <class Each>
void for_integers(Each each) {
  each(std::int16_t(), {"s16"});
  each(std::uint16_t(), {"u16", "b16"});
  each(std::int32_t(), {"s32"});
  each(std::uint32_t(), {"u32", "b32"});
  each(std::int64_t(), {"s64"});
  each(std::uint64_t(), {"u64", "b64"});
}
template <class Each>
void for_floats(Each each) {
  each(float(), {"f32"});
  each(double(), {"f64"});
}
using Names = std::initializer_list<const char*>;

void add(Table& table, const std::string& name, Names types, Action action) {
  for (const char* type : types) table[name + "." + type] = action;
}

void add_integers(Table& table) {
  for_integers([&]<class T>(T, Names types) {
    add(table, "add", types, &binary<kAdd, T>);
    add(table, "sub", types, &binary<kSubtract, T>);
    add(table, "mul.lo", types, &binary<kMultiply, T>);
    add(table, "mul.hi", types, &binary<kMultiplyHigh, T>);
    add(table, "mad.lo", types, &ternary<kMultiplyAdd, T>);
    add(table, "div", types, &divide_integers<T, false>);
    add(table, "rem", types, &divide_integers<T, true>);
    add(table, "min", types, &binary<kMinimum, T>);
    add(table, "max", types, &binary<kMaximum, T>);
    add(table, "neg", types, &unary<kNegateInteger, T>);
    add(table, "abs", types, &unary<kAbsoluteInteger, T>);
    add(table, "and", types, &binary<kAnd, T>);
    add(table, "or", types, &binary<kOr, T>);
    add(table, "xor", types, &binary<kXor, T>);
    add(table, "not", types, &unary<kNot, T>);
    add(table, "shl", types, &shift<kShiftLeft, T>);
    add(table, "shr", types, &shift<kShiftRight, T>);
    add(table, "selp", types, &choose<T>);
    add(table, "mov", types, &unary<kMove, T>);
    if constexpr (sizeof(T) < 8) {
      add(table, "mul.wide", types, &binary<kMultiplyWide, T>);
      add(table, "mad.wide", types, &multiply_add_wide<T>);
    }
    if constexpr (sizeof(T) > 2 && !std::is_signed_v<T>) {
      add(table, "bfi", types, &insert_bits<T>);
      add(table, "bfe", types, &extract_bits<T>);
    }
  });
  add(table, "and", {"pred"}, &binary<kAnd, std::uint64_t>);
  add(table, "or", {"pred"}, &binary<kOr, std::uint64_t>);
  add(table, "xor", {"pred"}, &binary<kXor, std::uint64_t>);
  add(table, "not", {"pred"}, &unary<kNotPredicate, std::uint64_t>);
  add(table, "mov", {"pred"}, &unary<kMove, std::uint64_t>);
  for (const char* name :
       {"cvta.to.global", "cvta.to.shared", "cvta.to.local", "cvta.global", "cvta.shared", "cvta.local"})
    add(table, name, {"u64"}, &unary<kMove, std::uint64_t>);
}

void add_floats(Table& table) {
  for_floats([&]<class T>(T, Names types) {
    for (const std::string mode : {"", ".rn"}) {
      add(table, "add" + mode, types, &binary<kAdd, T>);
      add(table, "sub" + mode, types, &binary<kSubtract, T>);
      add(table, "mul" + mode, types, &binary<kMultiply, T>);
    }
    add(table, "fma.rn", types, &ternary<kFma, T>);
    add(table, "div.rn", types, &binary<kDivide, T>);
    add(table, "sqrt.rn", types, &unary<kSquareRoot, T>);
    add(table, "rcp.rn", types, &unary<kReciprocal, T>);
    add(table, "min", types, &binary<kMinimum, T>);
    add(table, "max", types, &binary<kMaximum, T>);
    add(table, "neg", types, &unary<kNegate, T>);
    add(table, "abs", types, &unary<kAbsolute, T>);
    add(table, "copysign", types, &binary<kCopySign, T>);
    add(table, "selp", types, &choose<T>);
    add(table, "mov", types, &unary<kMove, T>);
  });
  table["fma.rm.f32"] = &fma_down;
  table["add.rz.f32"] = &add_towards_zero;
  table["ex2.approx.ftz.f32"] = &exp2_approximate;
  table["lg2.approx.ftz.f32"] = &log2_approximate;
  table["rcp.approx.ftz.f32"] = &reciprocal_approximate;
}

template <Comparison kHow, class T>
void add_comparison(Table& table, const std::string& name, Names types) {
  add(table, "setp." + name, types, &compare<kHow, T>);
}
template <class T>
void add_comparisons(Table& table, Names types) {
  add_comparison<Comparison::eq, T>(table, "eq", types);
  add_comparison<Comparison::ne, T>(table, "ne", types);
  add_comparison<Comparison::lt, T>(table, "lt", types);
  add_comparison<Comparison::le, T>(table, "le", types);
  add_comparison<Comparison::gt, T>(table, "gt", types);
  add_comparison<Comparison::ge, T>(table, "ge", types);
  if constexpr (std::is_floating_point_v<T>) {
    add_comparison<Comparison::equ, T>(table, "equ", types);
    add_comparison<Comparison::neu, T>(table, "neu", types);
    add_comparison<Comparison::ltu, T>(table, "ltu", types);
    add_comparison<Comparison::leu, T>(table, "leu", types);
    add_comparison<Comparison::gtu, T>(table, "gtu", types);
    add_comparison<Comparison::geu, T>(table, "geu", types);
    add_comparison<Comparison::num, T>(table, "num", types);
    add_comparison<Comparison::nan, T>(table, "nan", types);
  }
}

/// cvt to an integer narrower than its register extends the value by the integer's type.
template <class From>
void add_conversions(Table& table, const std::string& from) {
  if constexpr (std::is_integral_v<From>) {
    table["cvt.s8." + from] = &convert<std::int8_t, From>;
    table["cvt.u8." + from] = &convert<std::uint8_t, From>;
    table["cvt.s16." + from] = &convert<std::int16_t, From>;
    table["cvt.u16." + from] = &convert<std::uint16_t, From>;
    table["cvt.s32." + from] = &convert<std::int32_t, From>;
    table["cvt.u32." + from] = &convert<std::uint32_t, From>;
    table["cvt.s64." + from] = &convert<std::int64_t, From>;
    table["cvt.u64." + from] = &convert<std::uint64_t, From>;
    table["cvt.rn.f32." + from] = &convert<float, From>;
    table["cvt.rn.f64." + from] = &convert<double, From>;
  } else {
    table["cvt.rzi.s32." + from] = &convert_to_integer<std::int32_t, From>;
    table["cvt.rzi.u32." + from] = &convert_to_integer<std::uint32_t, From>;
    table["cvt.rzi.s64." + from] = &convert_to_integer<std::int64_t, From>;
    table["cvt.rzi.u64." + from] = &convert_to_integer<std::uint64_t, From>;
  }
}

Table make_table() {
  Table table;
  add_integers(table);
  add_floats(table);
  const auto both = [&]<class T>(T, Names types) {
    add_comparisons<T>(table, types);
    add_conversions<T>(table, *types.begin());
  };
  for_integers(both);
  for_floats(both);
  add_conversions<std::int8_t>(table, "s8");
  add_conversions<std::uint8_t>(table, "u8");
  table["cvt.rn.f32.f64"] = &convert<float, double>;
  table["cvt.f64.f32"] = &convert<double, float>;
  table["cvt.sat.f32.f32"] = &saturate;
  table["cvt.rn.bf16.f32"] = &to_bfloat16;
  table["cvt.f32.bf16"] = &from_bfloat16;
  return table;
}

}  // namespace

Action find_action(const std::vector<std::string>& opcode) {
  static const Table table = make_table();
  std::string name;
  for (const std::string& part : opcode) name += (name.empty() ? "" : ".") + part;
  const auto found = table.find(name);
  return found == table.end() ? nullptr : found->second;
}

Action find_pack(bool packs, const std::string& type) {
  if (type == "b64") return packs ? &pack<std::uint64_t, std::uint32_t> : &unpack<std::uint64_t, std::uint32_t>;
  if (type == "b32") return packs ? &pack<std::uint32_t, std::uint16_t> : &unpack<std::uint32_t, std::uint16_t>;
  return nullptr;
}

Fusible fusible(const std::vector<std::string>& opcode) {
  if (opcode.size() != 2 || (opcode[1] != "f32" && opcode[1] != "f64")) return Fusible::no;
  return opcode[0] == "mul"   ? Fusible::product
         : opcode[0] == "add" ? Fusible::sum
         : opcode[0] == "sub" ? Fusible::difference
                              : Fusible::no;
}

Action fused_sum(bool is_double) { return is_double ? &ternary<kFma, double> : &ternary<kFma, float>; }
Action fused_difference(bool is_double, bool product_first) {
  if (product_first) return is_double ? &ternary<kFmaOfProductFirst, double> : &ternary<kFmaOfProductFirst, float>;
  return is_double ? &ternary<kFmaOfTermFirst, double> : &ternary<kFmaOfTermFirst, float>;
}
void do_nothing(Thread&, const Instruction&) {}

}  // namespace duet_ptx
