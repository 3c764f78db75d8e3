#include "ddp/store/memory_store.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/error.h"
#include "lib/monotonic.h"

namespace duet::ddp {

template <class F>
auto MemoryStore::change(F&& change) {
  const std::lock_guard lock(mutex_);
  changed_.notify_all();  // before the change, but none wakes until the lock is free
  return change();
}

void MemoryStore::wait_locked(std::unique_lock<std::mutex>& lock, const std::vector<std::string>& keys,
                              Milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  changed_.wait_until(lock, deadline, [&] { return table_.has_all(keys) || !failure_.empty(); });
  if (table_.has_all(keys)) return;
  throw CommError(failure_.empty() ? timeout_message(table_.missing(keys), timeout) : failure_);
}

void MemoryStore::fail(const std::string& why) {
  change([&] {
    if (failure_.empty()) failure_ = why;
  });
}
void MemoryStore::set(const std::string& key, const std::string& value) {
  change([&] { table_.set(key, value); });
}
std::string MemoryStore::get(const std::string& key) { return multi_get({key}).front(); }
void MemoryStore::wait(const std::vector<std::string>& keys, Milliseconds timeout) {
  std::unique_lock lock(mutex_);
  wait_locked(lock, keys, timeout);
}
std::int64_t MemoryStore::add(const std::string& key, std::int64_t amount) {
  return change([&] { return table_.add(key, amount); });
}
bool MemoryStore::check(const std::vector<std::string>& keys) {
  const std::lock_guard lock(mutex_);
  return table_.has_all(keys);
}
std::string MemoryStore::compare_set(const std::string& key, const std::string& expected, const std::string& desired) {
  return change([&] { return table_.compare_set(key, expected, desired); });
}
bool MemoryStore::delete_key(const std::string& key) {
  return change([&] { return table_.erase(key); });
}
std::int64_t MemoryStore::num_keys() {
  const std::lock_guard lock(mutex_);
  return static_cast<std::int64_t>(table_.size());
}
void MemoryStore::append(const std::string& key, const std::string& suffix) {
  change([&] { table_.append(key, suffix); });
}
std::vector<std::string> MemoryStore::multi_get(const std::vector<std::string>& keys) {
  std::unique_lock lock(mutex_);
  wait_locked(lock, keys, timeout());
  std::vector<std::string> values;
  for (const std::string& key : keys) values.push_back(*table_.find(key));
  return values;
}
void MemoryStore::multi_set(const std::vector<std::string>& keys, const std::vector<std::string>& values) {
  require<UsageError>(keys.size() == values.size(), "multi_set got ", keys.size(), " keys and ", values.size(),
                      " values");
  change([&] {
    for (std::size_t i = 0; i < keys.size(); ++i) table_.set(keys[i], values[i]);
  });
}

}  // namespace duet::ddp
