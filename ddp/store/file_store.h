// A store in a file that all ranks can reach: an append-only log under flock.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "ddp/store/store.h"
#include "ddp/store/store_table.h"

namespace duet::ddp {

/// Keys carry the run id, so what an earlier run left in the file is never seen. Waiting polls every 10 ms.
/// Throws CommError when the file cannot be opened, is another user's or open to others, or is not a duet store.
class FileStore final : public Store {
 public:
  /// `run_id` is the same for all ranks of a run and new for each run. With a `world_size`, the last of so many stores
  /// to be destroyed removes the file.
  FileStore(std::string path, std::string run_id, int world_size = 0, Milliseconds timeout = kStoreTimeout);
  ~FileStore() override;
  FileStore(const FileStore&) = delete;
  FileStore& operator=(const FileStore&) = delete;

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

 private:
  class Locked;
  /// Throws CommError if other users can reach the file.
  void check_owner() const;
  /// Applies the records that others have written since the last read. Needs the lock.
  void catch_up();
  void write_record(char op, const std::string& key, const std::string& value);
  /// Writes what the table now holds for `key`.
  void publish(const std::string& key);

  std::string path_;
  std::string run_id_;
  int world_size_;
  int file_ = -1;
  std::int64_t read_ = 0;  // bytes of the log already applied
  std::mutex mutex_;       // flock orders processes, this the threads of one
  StoreTable table_;       // this run's keys, without the run id
};

}  // namespace duet::ddp
