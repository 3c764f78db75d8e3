// The key-value store for the rendezvous of ranks. Its rules are those of PyTorch's TCPStore
// (torch/csrc/distributed/c10d/TCPStore.hpp), except that every timeout names what is missing.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace duet::ddp {

using Milliseconds = std::chrono::milliseconds;

inline constexpr std::size_t kMaxKeyBytes = 4096;
inline constexpr std::size_t kMaxValueBytes = std::size_t{16} << 20;
inline constexpr std::size_t kMaxTableBytes = std::size_t{256} << 20;  // all keys and values, and kEntryBytes for each
inline constexpr std::size_t kEntryBytes = 128;
inline constexpr Milliseconds kClosePatience{10'000};  // for what a store says as it goes, which nobody waits for
inline constexpr Milliseconds kStoreTimeout{300'000};

/// What a store is asked. `wait`, `get` and `take` wait until all of their keys are set.
enum class StoreOp : std::uint8_t {
  set,
  get,
  wait,
  add,
  check,
  compare_set,
  erase,
  count,
  append,
  erase_prefix,
  take,
  post
};
constexpr bool waits(StoreOp op) { return op == StoreOp::get || op == StoreOp::wait || op == StoreOp::take; }

/// Strings by name, shared by all ranks. Thread-safe. Keys have 1 to kMaxKeyBytes bytes and values at most
/// kMaxValueBytes, all of them together kMaxTableBytes, else UsageError; a lost server or an unusable file is a
/// CommError.
class Store {
 public:
  virtual ~Store() = default;

  /// Sets a value and wakes the ranks that wait for it.
  void set(const std::string& key, const std::string& value) { multi_set({key}, {value}); }
  /// Sets a value without waiting for a store on another host. An error is that of the next call that waits for one.
  void post(const std::string& key, const std::string& value) { request(StoreOp::post, {key, value}, timeout()); }
  /// The value; blocks until it is set. Throws CommError that names the key after timeout().
  std::string get(const std::string& key);
  /// Blocks until all keys are set. Throws CommError that names the missing ones.
  void wait(const std::vector<std::string>& keys, Milliseconds timeout) { request(StoreOp::wait, keys, timeout); }
  void wait(const std::vector<std::string>& keys) { wait(keys, timeout()); }
  /// Blocks until the key is set, deletes it, and returns its value, in one step. Throws CommError that names the key.
  std::string take(const std::string& key, Milliseconds timeout);
  /// Adds to a number held as decimal digits and returns the sum. A missing key counts as 0. Throws CommError when the
  /// value is no number.
  std::int64_t add(const std::string& key, std::int64_t amount);
  /// True if all keys are set; never blocks.
  bool check(const std::vector<std::string>& keys);
  /// Sets `desired` if the value equals `expected`, or if the key is missing and `expected` is empty. Returns the value
  /// afterwards; for a missing key that was not made, `expected`.
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired);
  /// Sets those of the keys that are missing, all in one message, and returns the values that the keys then have.
  std::vector<std::string> set_missing(const std::vector<std::string>& keys, const std::vector<std::string>& values);
  /// True if the key was there.
  bool delete_key(const std::string& key);
  /// Deletes all keys that begin so, and returns how many; none in a store that cannot list its keys (PyTorch's).
  std::int64_t delete_prefix(const std::string& prefix);
  /// Number of keys that users made (PyTorch counts one of its own as well).
  std::int64_t num_keys();
  void append(const std::string& key, const std::string& suffix);
  /// Get and set all of these keys at once, as get() and set() do a single one.
  std::vector<std::string> multi_get(const std::vector<std::string>& keys, std::optional<Milliseconds> limit = {});
  void multi_set(const std::vector<std::string>& keys, const std::vector<std::string>& values);
  /// The shared secret of this store's ranks: the key of proofs between ranks, which are worth nothing at another
  /// store. It is a random one that the first caller puts into the store; where the store was made with a secret, it is
  /// derived from that, the run and the random one.
  virtual std::string secret();

  /// How many groups this rank has made over this object so far; counts one more. Equal on ranks that make the same
  /// ones.
  int next_group(int rank);

  /// How long get(), multi_get() and wait() block.
  Milliseconds timeout() const { return timeout_; }

  /// The functions above, as one: `strings` are what StoreTable::answer() takes, and the result is its answer.
  /// `timeout` is that of operations that wait.
  virtual std::vector<std::string> request(StoreOp op, std::vector<std::string> strings, Milliseconds timeout) = 0;

 protected:
  explicit Store(Milliseconds timeout) : timeout_(timeout) {}

  std::mutex secret_mutex_;
  std::string secret_;  // once asked for, or brought by another answer

 private:
  std::string ask_one(StoreOp op, std::vector<std::string> strings);
  std::int64_t ask_number(StoreOp op, std::vector<std::string> strings);

  Milliseconds timeout_;
  std::mutex groups_mutex_;
  std::map<int, int> groups_;  // by rank: threads of one process may share a store
};

/// Another store's keys under a prefix, so that runs and groups do not collide. num_keys() counts the whole store.
class PrefixStore final : public Store {
 public:
  /// With `members`, the last of so many of them to be destroyed, one on each rank of a group, deletes their keys.
  PrefixStore(std::shared_ptr<Store> store, std::string prefix, int members = 0);
  ~PrefixStore() override;
  PrefixStore(const PrefixStore&) = delete;
  PrefixStore& operator=(const PrefixStore&) = delete;
  std::string secret() override { return store_->secret(); }
  std::vector<std::string> request(StoreOp op, std::vector<std::string> strings, Milliseconds timeout) override;

 private:
  std::shared_ptr<Store> store_;
  std::string prefix_;
  int members_;
};

/// The keys of a store without any waiting. Not thread-safe. Throws UsageError for a key or value beyond the limits
/// above, and is then unchanged.
class StoreTable {
 public:
  /// `in` are keys (get, take, wait, check), keys and values in turn (set, post), or the arguments of the function of
  /// Store, for compare_set of several calls in turn. Numbers are decimal, true is "1". All keys of `get` and `take`
  /// must be there. Throws UsageError for other arguments.
  std::vector<std::string> answer(StoreOp op, const std::vector<std::string>& in);
  void set(const std::string& key, std::string value);
  /// nullptr if the key is missing.
  const std::string* find(const std::string& key) const;
  std::int64_t add(const std::string& key, std::int64_t amount);
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired);
  bool erase(const std::string& key);
  /// The keys that begin so, in their order.
  std::vector<std::string> keys_under(const std::string& prefix) const;
  void append(const std::string& key, const std::string& suffix);
  std::size_t size() const { return values_.size(); }
  bool has_all(const std::vector<std::string>& keys) const;
  /// "waited 1000 ms for the store's keys /a, /b, which no rank has set", of those that are missing. Names at most
  /// eight keys.
  std::string timeout_message(const std::vector<std::string>& keys, Milliseconds waited) const;

 private:
  /// Throws UsageError unless a value of so many bytes fits under the key.
  void check_room(const std::string& key, std::size_t value_bytes) const;

  std::map<std::string, std::string> values_;
  std::size_t bytes_ = 0;  // in use, at most kMaxTableBytes
};

/// A store for ranks that are threads of one process: all hold the same object. Who sets the last key that a wait
/// misses also answers it, so the value of a key that is deleted right after still reaches all who wait for it.
class MemoryStore final : public Store {
 public:
  /// Throws where the values of get(), their number and bytes, are too many to be copied.
  using CheckAnswer = void (*)(std::size_t count, std::size_t bytes);
  explicit MemoryStore(Milliseconds timeout = kStoreTimeout, CheckAnswer check_answer = nullptr)
      : Store(timeout), check_answer_(check_answer) {}
  /// Ends all waits for keys that are missing, also later ones, by a CommError with this text. The first call counts.
  void fail(const std::string& why);
  std::vector<std::string> request(StoreOp op, std::vector<std::string> strings, Milliseconds timeout) override;
  /// How often a key of get() or wait() was looked up, so far: n ranks that wait for n keys each take about n * n.
  std::uint64_t lookups();

 private:
  struct Waiter;
  /// Waiters by a key that each misses, so that setting a key costs nothing for those that miss another one.
  using Waiters = std::multimap<std::string_view, Waiter*>;
  struct Waiter {
    const StoreOp op;
    const std::vector<std::string>& keys;
    std::size_t unseen = keys.size();  // those before it have not been looked up yet; the others were all set
    std::uint64_t erasures = 0;        // when the lookups began
    std::condition_variable changed{};
    Waiters::iterator place{};
    bool done = false;
    std::vector<std::string> answer{};
    std::exception_ptr failure{};
  };
  std::vector<std::string> answer(StoreOp op, const std::vector<std::string>& strings);
  std::vector<std::string> wait_for(std::unique_lock<std::mutex>& lock, Waiter& waiter, const std::string& missing,
                                    Milliseconds timeout);
  void serve_waiters(const std::string& key);
  /// The last of the keys that is missing; nullptr if none is.
  const std::string* missing_key(Waiter& waiter);

  const CheckAnswer check_answer_;
  std::mutex mutex_;
  StoreTable table_;
  std::uint64_t lookups_ = 0, erasures_ = 0;
  std::string failure_;
  Waiters waiters_;
};

/// "rank 1", "ranks 1, 3", or those of another kind; empty for none.
std::string rank_names(const std::vector<int>& ranks, const std::string& kind = "rank");
/// The ranks' keys in a store: "PREFIX/0", "PREFIX/1", ...
std::vector<std::string> rank_keys(const std::string& prefix, int size);
/// Waits for the keys of ranks 0, 1, ... (rank_keys()) and returns their values. Throws CommError that names those that
/// set none, by `act`: "ranks 1, 3 of 4 did not join within 3000 ms (waiting on rank 0)".
std::vector<std::string> await_ranks(Store& store, const std::vector<std::string>& keys, int rank,
                                     const std::string& act, Milliseconds timeout);
/// Sets this rank's key, awaits the others, and returns the texts of all.
std::vector<std::string> meet(Store& store, const std::string& prefix, int rank, int size, Milliseconds timeout,
                              const std::string& text = {}, const std::string& act = "connect");
/// Ends a rendezvous: the others say that they need the store no more, for which rank 0, which may serve it, waits for
/// at most 10 s.
void leave_last(Store& store, const std::string& prefix, int rank, int size);
/// The ranks whose key of rank_keys() is not set; none if the store is lost.
std::vector<int> ranks_without_key(Store& store, const std::vector<std::string>& keys);

}  // namespace duet::ddp
