// A TCP proxy that injects network faults.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <limits>
#include <memory>
#include <string>
#include <thread>

namespace duet_test {

/// The faults of each connection. Bytes are counted both ways together.
struct Trouble {
  static constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();
  std::chrono::milliseconds delay{0};  // of every piece
  std::size_t reset_after = kNever;    // as many bytes pass, then both ends get a reset
  std::size_t swallow_after = kNever;  // as many bytes pass; later ones are dropped, and so is a close
  std::size_t change_after = kNever;   // as many bytes pass, then one of every piece of an answer is changed
  bool only_answers = false;           // what the client sends still passes when answers are swallowed
};

/// Listens on a port of `address`, a free one unless given, and passes on to another one until destroyed; the target
/// may come later.
class Proxy {
 public:
  Proxy(const std::string& address, int target_port, const Trouble& trouble, int port = 0);
  ~Proxy();
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;
  int port() const;
  /// Bytes received; any thread may call it.
  std::size_t bytes() const;

 private:
  struct Parts;
  class Connection;
  std::unique_ptr<Parts> parts_;
  std::thread thread_;
};

}  // namespace duet_test
