#include "ddp/store_table.h"

#include <charconv>
#include <system_error>
#include <utility>

#include "lib/error.h"

namespace duet::ddp {

void StoreTable::set(const std::string& key, std::string value) {
  require<UsageError>(!key.empty() && key.size() <= kMaxKeyBytes, "a store's key has 1 to ", kMaxKeyBytes,
                      " bytes, got ", key.size());
  require<UsageError>(value.size() <= kMaxValueBytes, "a store's value has at most ", kMaxValueBytes, " bytes, got ",
                      value.size(), " for key ", key);
  values_[key] = std::move(value);
}

const std::string* StoreTable::find(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

std::int64_t StoreTable::add(const std::string& key, std::int64_t amount) {
  std::int64_t number = 0;
  if (const std::string* text = find(key)) {
    const char* end = text->data() + text->size();
    const auto [stop, error] = std::from_chars(text->data(), end, number);
    require<CommError>(error == std::errc() && stop == end, "cannot add to the store's key ", key, ": it holds \"",
                       text->substr(0, 40), "\", not a number");
  }
  std::int64_t sum = 0;
  require<CommError>(!__builtin_add_overflow(number, amount, &sum), "the store's number ", key, " overflows: ", number,
                     " + ", amount);
  set(key, std::to_string(sum));
  return sum;
}

std::string StoreTable::compare_set(const std::string& key, const std::string& expected, const std::string& desired) {
  const std::string* current = find(key);
  if (current ? *current != expected : !expected.empty()) return current ? *current : expected;
  set(key, desired);
  return desired;
}

void StoreTable::append(const std::string& key, const std::string& suffix) {
  const std::string* current = find(key);
  set(key, current ? *current + suffix : suffix);
}

std::vector<std::string> StoreTable::missing(const std::vector<std::string>& keys) const {
  std::vector<std::string> names;
  for (const std::string& key : keys) {
    if (!find(key)) names.push_back(key);
  }
  return names;
}

std::string timeout_message(const std::vector<std::string>& missing, Milliseconds waited) {
  constexpr std::size_t kNamed = 8;
  std::string names;
  for (std::size_t i = 0; i < missing.size() && i < kNamed; ++i) names += (i ? ", " : "") + missing[i];
  if (missing.size() > kNamed) names += concat(" and ", missing.size() - kNamed, " more");
  return concat("waited ", waited.count(), " ms for the store's key", missing.size() > 1 ? "s " : " ", names,
                ", which nobody set");
}

}  // namespace duet::ddp
