#include "ddp/store/store.h"

#include <algorithm>
#include <utility>

#include "ddp/store/secret.h"
#include "lib/error.h"
#include "lib/monotonic.h"
#include "lib/parse_number.h"

namespace duet::ddp {
namespace {

std::size_t entry_bytes(const std::string& key, std::size_t value_bytes) {
  return kEntryBytes + key.size() + value_bytes;
}

}  // namespace

std::string Store::ask_one(StoreOp op, std::vector<std::string> strings) {
  std::vector<std::string> answer = request(op, std::move(strings), timeout());
  require<CommError>(answer.size() == 1, "the store sent ", answer.size(), " strings, expected 1");
  return std::move(answer.front());
}

std::int64_t Store::ask_number(StoreOp op, std::vector<std::string> strings) {
  const std::string digits = ask_one(op, std::move(strings));
  const auto number = parse_number<std::int64_t>(digits);
  require<CommError>(number.has_value(), "the store sent \"", digits, "\", expected a number");
  return *number;
}

std::string Store::get(const std::string& key) { return ask_one(StoreOp::get, {key}); }
std::string Store::take(const std::string& key, Milliseconds timeout) {
  const std::vector<std::string> values = request(StoreOp::take, {key}, timeout);
  require<CommError>(values.size() == 1, "the store answered ", values.size(), " values for a key");
  return values[0];
}
std::int64_t Store::add(const std::string& key, std::int64_t amount) {
  return ask_number(StoreOp::add, {key, std::to_string(amount)});
}
bool Store::check(const std::vector<std::string>& keys) { return ask_one(StoreOp::check, keys) == "1"; }
std::string Store::compare_set(const std::string& key, const std::string& expected, const std::string& desired) {
  return ask_one(StoreOp::compare_set, {key, expected, desired});
}
bool Store::delete_key(const std::string& key) { return ask_one(StoreOp::erase, {key}) == "1"; }
std::int64_t Store::delete_prefix(const std::string& prefix) { return ask_number(StoreOp::erase_prefix, {prefix}); }
std::int64_t Store::num_keys() { return ask_number(StoreOp::count, {}); }
void Store::append(const std::string& key, const std::string& suffix) {
  request(StoreOp::append, {key, suffix}, timeout());
}

std::vector<std::string> Store::multi_get(const std::vector<std::string>& keys, std::optional<Milliseconds> limit) {
  std::vector<std::string> values = request(StoreOp::get, keys, limit.value_or(timeout()));
  require<CommError>(values.size() == keys.size(), "the store answered ", values.size(), " values for ", keys.size(),
                     " keys");
  return values;
}

void Store::multi_set(const std::vector<std::string>& keys, const std::vector<std::string>& values) {
  require<UsageError>(keys.size() == values.size(), "multi_set got ", keys.size(), " keys and ", values.size(),
                      " values");
  std::vector<std::string> pairs;
  for (std::size_t i = 0; i < keys.size(); ++i) pairs.insert(pairs.end(), {keys[i], values[i]});
  request(StoreOp::set, std::move(pairs), timeout());
}

std::string Store::secret() {
  const std::lock_guard lock(secret_mutex_);
  if (secret_.empty()) secret_ = compare_set(kSecretKey, "", random_bytes(kSecretBytes));
  return secret_;
}

std::vector<std::string> Store::set_missing(const std::vector<std::string>& keys,
                                            const std::vector<std::string>& values) {
  std::vector<std::string> strings;
  for (std::size_t i = 0; i < keys.size(); ++i) strings.insert(strings.end(), {keys[i], "", values.at(i)});
  std::vector<std::string> found = request(StoreOp::compare_set, std::move(strings), timeout());
  require<CommError>(found.size() == keys.size(), "the store answered ", found.size(), " values for ", keys.size(),
                     " keys");
  return found;
}

int Store::next_group(int rank) {
  const std::lock_guard lock(groups_mutex_);
  return groups_[rank]++;
}

PrefixStore::PrefixStore(std::shared_ptr<Store> store, std::string prefix, int members)
    : Store(store->timeout()), store_(std::move(store)), prefix_(std::move(prefix)), members_(members) {}

PrefixStore::~PrefixStore() {
  try {
    if (members_ > 0 && request(StoreOp::add, {"/duet/closed", "1"}, kClosePatience)[0] == std::to_string(members_))
      request(StoreOp::erase_prefix, {""}, kClosePatience);
  } catch (const Error&) {  // the store has ended with its server
  }
}

std::vector<std::string> PrefixStore::request(StoreOp op, std::vector<std::string> strings, Milliseconds timeout) {
  const bool only_keys = waits(op) || op == StoreOp::check;
  for (std::size_t i = 0; i < strings.size(); ++i)
    if (only_keys || i == 0 || ((op == StoreOp::set || op == StoreOp::post) && i % 2 == 0) ||
        (op == StoreOp::compare_set && i % 3 == 0))
      strings[i].insert(0, prefix_);
  return store_->request(op, std::move(strings), timeout);
}

std::vector<std::string> StoreTable::answer(StoreOp op, const std::vector<std::string>& in) {
  const auto arguments = [&](std::size_t count) {
    require<UsageError>(in.size() == count, "store request ", static_cast<int>(op), " has ", in.size(),
                        " arguments, expected ", count);
  };
  std::vector<std::string> out;
  switch (op) {
    case StoreOp::set:
    case StoreOp::post:
      require<UsageError>(in.size() % 2 == 0, "store request set has ", in.size(), " arguments, expected pairs");
      for (std::size_t i = 0; i < in.size(); i += 2) set(in[i], in[i + 1]);
      return out;
    case StoreOp::get:
    case StoreOp::take:
      for (const std::string& key : in) out.push_back(*find(key));
      if (op == StoreOp::take)
        for (const std::string& key : in) erase(key);
      return out;
    case StoreOp::wait: return out;
    case StoreOp::add: {
      arguments(2);
      const auto amount = parse_number<std::int64_t>(in[1]);
      require<UsageError>(amount.has_value(), "cannot add \"", in[1], "\" in the store");
      return {std::to_string(add(in[0], *amount))};
    }
    case StoreOp::check: return {has_all(in) ? "1" : "0"};
    case StoreOp::compare_set:
      require<UsageError>(in.size() % 3 == 0, "store request compare_set has ", in.size(),
                          " arguments, expected threes");
      for (std::size_t i = 0; i < in.size(); i += 3) out.push_back(compare_set(in[i], in[i + 1], in[i + 2]));
      return out;
    case StoreOp::erase: arguments(1); return {erase(in[0]) ? "1" : "0"};
    case StoreOp::count: return {std::to_string(size())};
    case StoreOp::append:
      arguments(2);
      append(in[0], in[1]);
      return out;
    case StoreOp::erase_prefix: {
      arguments(1);
      const std::vector<std::string> keys = keys_under(in[0]);
      for (const std::string& key : keys) erase(key);
      return {std::to_string(keys.size())};
    }
  }
  throw UsageError(concat("unknown store request ", static_cast<int>(op)));
}

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

std::vector<std::string> StoreTable::keys_under(const std::string& prefix) const {
  std::vector<std::string> keys;
  for (auto at = values_.lower_bound(prefix); at != values_.end() && at->first.starts_with(prefix); ++at)
    keys.push_back(at->first);
  return keys;
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

std::string StoreTable::timeout_message(const std::vector<std::string>& keys, Milliseconds waited) const {
  constexpr std::size_t kNamed = 8;
  std::string names;
  std::size_t missing = 0;
  for (const std::string& key : keys)
    if (!find(key) && ++missing <= kNamed) names += (missing > 1 ? ", " : "") + key;
  if (missing > kNamed) names += concat(" and ", missing - kNamed, " more");
  return concat("waited ", waited.count(), " ms for the store's key", missing > 1 ? "s " : " ", names,
                ", which no rank has set");
}

void MemoryStore::fail(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) failure_ = why;
  for (const auto& [key, waiter] : waiters_) waiter->changed.notify_one();
}

std::vector<std::string> MemoryStore::request(StoreOp op, std::vector<std::string> strings, Milliseconds timeout) {
  std::unique_lock lock(mutex_);
  if (waits(op)) {
    Waiter waiter{.op = op, .keys = strings, .erasures = erasures_};
    if (const std::string* const missing = missing_key(waiter)) return wait_for(lock, waiter, *missing, timeout);
    return answer(op, strings);
  }
  const auto serve = [&] {  // values are no keys, and cost a search
    for (const std::string& key : strings) serve_waiters(key);
  };
  try {
    std::vector<std::string> result = answer(op, strings);
    serve();
    return result;
  } catch (...) {  // the first of several keys may have been set
    serve();
    throw;
  }
}

std::uint64_t MemoryStore::lookups() {
  const std::lock_guard lock(mutex_);
  return lookups_;
}

std::vector<std::string> MemoryStore::answer(StoreOp op, const std::vector<std::string>& strings) {
  std::size_t bytes = 0;
  erasures_ += op == StoreOp::erase || op == StoreOp::erase_prefix || op == StoreOp::take;
  if ((op == StoreOp::get || op == StoreOp::take) && check_answer_) {
    for (const std::string& key : strings) bytes += table_.find(key)->size();
    check_answer_(strings.size(), bytes);
  }
  return table_.answer(op, strings);
}

std::vector<std::string> MemoryStore::wait_for(std::unique_lock<std::mutex>& lock, Waiter& waiter,
                                               const std::string& missing, Milliseconds timeout) {
  waiter.place = waiters_.emplace(missing, &waiter);
  waiter.changed.wait_until(lock, Clock::now() + timeout, [&] { return waiter.done || !failure_.empty(); });
  if (!waiter.done) {
    waiters_.erase(waiter.place);
    throw CommError(failure_.empty() ? table_.timeout_message(waiter.keys, timeout) : failure_);
  }
  if (waiter.failure) std::rethrow_exception(waiter.failure);
  return std::move(waiter.answer);
}

void MemoryStore::serve_waiters(const std::string& key) {
  for (auto found = waiters_.find(key); found != waiters_.end() && table_.find(key); found = waiters_.find(key)) {
    Waiter& waiter = *found->second;
    auto node = waiters_.extract(found);
    if (const std::string* const next = missing_key(waiter)) {
      node.key() = *next;
      waiter.place = waiters_.insert(std::move(node));
      continue;
    }
    waiter.done = true;
    try {
      waiter.answer = answer(waiter.op, waiter.keys);
    } catch (...) {
      waiter.failure = std::current_exception();
    }
    waiter.changed.notify_one();
  }
}

// From the last on: ranks come about in their order, so this is the key of the one that comes last. The lookups go on
// where they stopped, and begin anew at their end if a key was deleted meanwhile.
const std::string* MemoryStore::missing_key(Waiter& waiter) {
  for (;;) {
    for (; waiter.unseen > 0; --waiter.unseen) {
      const std::string& key = waiter.keys[waiter.unseen - 1];
      ++lookups_;
      if (table_.find(key) == nullptr) return &key;
    }
    if (std::exchange(waiter.erasures, erasures_) == erasures_) return nullptr;
    waiter.unseen = waiter.keys.size();
  }
}

std::string rank_names(const std::vector<int>& ranks, const std::string& kind) {
  std::string text;
  for (const int rank : ranks) text += concat(text.empty() ? "" : ", ", rank);
  return ranks.empty() ? "" : concat(kind, ranks.size() > 1 ? "s " : " ", text);
}

std::vector<std::string> rank_keys(const std::string& prefix, int size) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < size; ++rank) keys.push_back(concat(prefix, "/", rank));
  return keys;
}

std::vector<std::string> await_ranks(Store& store, const std::vector<std::string>& keys, int rank,
                                     const std::string& act, Milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  try {
    return store.multi_get(keys, timeout);
  } catch (const CommError&) {
    if (Clock::now() < deadline) throw;  // for another reason
    const std::string missing = rank_names(ranks_without_key(store, keys));
    if (missing.empty()) throw;
    const std::string of_all = keys.size() > 1 ? concat(" of ", keys.size()) : "";
    throw CommError(
        concat(missing, of_all, " did not ", act, " within ", timeout.count(), " ms (waiting on rank ", rank, ")"));
  }
}

std::vector<std::string> meet(Store& store, const std::string& prefix, int rank, int size, Milliseconds timeout,
                              const std::string& text, const std::string& act) {
  const std::vector<std::string> keys = rank_keys(prefix, size);
  store.post(keys[static_cast<std::size_t>(rank)], text);
  return await_ranks(store, keys, rank, act, timeout);
}

void leave_last(Store& store, const std::string& prefix, int rank, int size) {
  std::vector<std::string> keys = rank_keys(prefix, size);
  try {
    if (rank != 0) return store.set(keys[static_cast<std::size_t>(rank)], "");
    keys.erase(keys.begin());
    if (!keys.empty()) store.wait(keys, Milliseconds(10'000));
    store.delete_prefix(prefix + "/");
  } catch (const CommError&) {  // rank 0 has seen the key and ended; or a rank was lost, which its next call finds
  }
}

std::vector<int> ranks_without_key(Store& store, const std::vector<std::string>& keys) {
  std::vector<int> ranks;
  try {
    for (std::size_t rank = 0; rank < keys.size(); ++rank)
      if (!store.check({keys[rank]})) ranks.push_back(static_cast<int>(rank));
  } catch (const CommError&) {
    return {};
  }
  return ranks;
}

}  // namespace duet::ddp
