// A store for ranks that are threads of one process.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "ddp/store/store.h"
#include "ddp/store/store_table.h"

namespace duet::ddp {

/// All ranks hold the same object.
class MemoryStore final : public Store {
 public:
  explicit MemoryStore(Milliseconds timeout = kStoreTimeout) : Store(timeout) {}
  using Store::wait;
  /// Ends all waits for keys that are missing, also later ones, by a CommError with this text. The first call counts.
  void fail(const std::string& why);
  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key) override;
  void wait(const std::vector<std::string>& keys, Milliseconds timeout) override;
  std::int64_t add(const std::string& key, std::int64_t amount) override;
  bool check(const std::vector<std::string>& keys) override;
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired) override;
  bool delete_key(const std::string& key) override;
  std::int64_t num_keys() override;
  void append(const std::string& key, const std::string& suffix) override;
  std::vector<std::string> multi_get(const std::vector<std::string>& keys) override;
  void multi_set(const std::vector<std::string>& keys, const std::vector<std::string>& values) override;

 private:
  /// Runs `change` on the table under the lock and wakes the waiters.
  template <class F>
  auto change(F&& change);
  void wait_locked(std::unique_lock<std::mutex>& lock, const std::vector<std::string>& keys, Milliseconds timeout);

  std::mutex mutex_;
  std::condition_variable changed_;
  StoreTable table_;
  std::string failure_;
};

}  // namespace duet::ddp
