#include "ddp/store/store_table.h"

#include <algorithm>
#include <utility>

#include "lib/error.h"
#include "lib/parse_number.h"

namespace duet::ddp {

namespace {

std::size_t entry_bytes(const std::string& key, std::size_t value_bytes) {
  return kEntryBytes + key.size() + value_bytes;
}

}  // namespace

void StoreTable::check_room(const std::string& key, std::size_t value_bytes) const {
  require<UsageError>(!key.empty() && key.size() <= kMaxKeyBytes, "a store's key has 1 to ", kMaxKeyBytes,
                      " bytes, got ", key.size());
  require<UsageError>(value_bytes <= kMaxValueBytes, "a store's value has at most ", kMaxValueBytes, " bytes, got ",
                      value_bytes, " for key ", key);
  const std::string* current = find(key);
  const std::size_t others = bytes_ - (current ? entry_bytes(key, current->size()) : 0);
  require<UsageError>(entry_bytes(key, value_bytes) <= kMaxTableBytes - others, "a store has room for ", kMaxTableBytes,
                      " bytes, of which ", others, " are used: ", value_bytes, " more for key ", key, " do not fit");
}

void StoreTable::set(const std::string& key, std::string value) {
  check_room(key, value.size());
  const std::size_t bytes = entry_bytes(key, value.size());
  const auto [at, made] = values_.try_emplace(key);
  if (!made) bytes_ -= entry_bytes(key, at->second.size());
  at->second = std::move(value);
  bytes_ += bytes;
}

bool StoreTable::erase(const std::string& key) {
  const auto found = values_.find(key);
  if (found == values_.end()) return false;
  bytes_ -= entry_bytes(key, found->second.size());
  values_.erase(found);
  return true;
}

const std::string* StoreTable::find(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

std::int64_t StoreTable::add(const std::string& key, std::int64_t amount) {
  const std::string* const text = find(key);
  const auto number = parse_number<std::int64_t>(text ? *text : "0");
  require<CommError>(number.has_value(), "cannot add to the store's key ", key, ": it holds \"",
                     text ? text->substr(0, 40) : "", "\", not a number");
  std::int64_t sum = 0;
  require<CommError>(!__builtin_add_overflow(*number, amount, &sum), "the store's number ", key,
                     " overflows: ", *number, " + ", amount);
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
  check_room(key, (current ? current->size() : 0) + suffix.size());
  set(key, current ? *current + suffix : suffix);
}

bool StoreTable::has_all(const std::vector<std::string>& keys) const {
  return std::all_of(keys.begin(), keys.end(), [&](const std::string& key) { return find(key) != nullptr; });
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
                ", which no rank has set");
}

}  // namespace duet::ddp
