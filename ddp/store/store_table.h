// The keys of a store without any waiting: what the three stores share.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ddp/store/store.h"

namespace duet::ddp {

/// Not thread-safe. Throws UsageError for a key or value beyond the limits of store.h, and is then unchanged.
class StoreTable {
 public:
  void set(const std::string& key, std::string value);
  /// nullptr if the key is missing.
  const std::string* find(const std::string& key) const;
  std::int64_t add(const std::string& key, std::int64_t amount);
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired);
  bool erase(const std::string& key);
  void append(const std::string& key, const std::string& suffix);
  std::size_t size() const { return values_.size(); }
  bool has_all(const std::vector<std::string>& keys) const;
  std::vector<std::string> missing(const std::vector<std::string>& keys) const;

 private:
  /// Throws UsageError unless a value of so many bytes fits under the key.
  void check_room(const std::string& key, std::size_t value_bytes) const;

  std::map<std::string, std::string> values_;
  std::size_t bytes_ = 0;  // of kMaxTableBytes
};

/// "waited 1000 ms for the store's keys /a, /b, which no rank has set". Names at most eight keys.
std::string timeout_message(const std::vector<std::string>& missing, Milliseconds waited);

}  // namespace duet::ddp
