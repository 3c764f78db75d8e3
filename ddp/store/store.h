// The key-value store for the rendezvous of ranks. Its rules are those of PyTorch's TCPStore
// (torch/csrc/distributed/c10d/TCPStore.hpp), except that every timeout names what is missing.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace duet::ddp {

using Milliseconds = std::chrono::milliseconds;

inline constexpr std::size_t kMaxKeyBytes = 4096;
inline constexpr std::size_t kMaxValueBytes = std::size_t{16} << 20;
inline constexpr std::size_t kMaxTableBytes = std::size_t{256} << 20;  // of all keys and values, kEntryBytes for each
inline constexpr std::size_t kEntryBytes = 128;
inline constexpr Milliseconds kStoreTimeout{300'000};

/// Strings by name, shared by all ranks. Thread-safe. Keys have 1 to kMaxKeyBytes bytes and values at most
/// kMaxValueBytes, all of them together kMaxTableBytes, else UsageError; a lost server or an unusable file is a
/// CommError.
class Store {
 public:
  virtual ~Store() = default;

  /// Sets a value and wakes the ranks that wait for it.
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// The value; blocks until it is set. Throws CommError that names the key after timeout().
  virtual std::string get(const std::string& key) = 0;
  /// Blocks until all keys are set. Throws CommError that names the missing ones.
  virtual void wait(const std::vector<std::string>& keys, Milliseconds timeout) = 0;
  /// Adds to a number held as decimal digits and returns the sum. A missing key counts as 0. Throws CommError when the
  /// value is no number.
  virtual std::int64_t add(const std::string& key, std::int64_t amount) = 0;
  /// True if all keys are set; never blocks.
  virtual bool check(const std::vector<std::string>& keys) = 0;
  /// Sets `desired` if the value equals `expected`, or if the key is missing and `expected` is empty. Returns the value
  /// afterwards; for a missing key that was not made, `expected`.
  virtual std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired) = 0;
  /// True if the key was there.
  virtual bool delete_key(const std::string& key) = 0;
  /// Number of keys that users made (PyTorch counts one of its own as well).
  virtual std::int64_t num_keys() = 0;
  virtual void append(const std::string& key, const std::string& suffix) = 0;
  /// As get() and set(), for all keys at once.
  virtual std::vector<std::string> multi_get(const std::vector<std::string>& keys) = 0;
  virtual void multi_set(const std::vector<std::string>& keys, const std::vector<std::string>& values) = 0;
  /// The shared secret of this store's ranks: the key of proofs between ranks.
  /// Unless the store was made with one, a random one that the first caller puts into it.
  virtual std::string secret();

  void wait(const std::vector<std::string>& keys) { wait(keys, timeout()); }
  /// How long get(), multi_get() and wait() block.
  Milliseconds timeout() const { return timeout_; }

 protected:
  explicit Store(Milliseconds timeout) : timeout_(timeout) {}

 private:
  Milliseconds timeout_;
};

/// Another store's keys under a prefix, so that runs and groups do not collide. num_keys() counts the whole store.
class PrefixStore final : public Store {
 public:
  PrefixStore(std::shared_ptr<Store> store, std::string prefix);
  using Store::wait;
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
  std::string secret() override { return store_->secret(); }

 private:
  std::vector<std::string> prefixed(const std::vector<std::string>& keys) const;
  std::shared_ptr<Store> store_;
  std::string prefix_;
};

}  // namespace duet::ddp
