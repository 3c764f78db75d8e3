// The headers of a rank's collectives, for libraries that do not compare them: ranks exchange them from time to time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ddp/group/call_header.h"

namespace duet::ddp {

/// Ranks must add the same headers in the same order. A difference is found where the ranks are fewer than kKept
/// collectives apart, and both sides can be printed if they exchange texts before so many are added. Used by one thread
/// at a time.
class CallLog {
 public:
  static constexpr std::uint64_t kKept = 4096;

  void add(const Call& call);
  /// Whether something was added since the last text().
  bool fresh() const { return sent_ != count_; }
  /// What is sent to the other ranks: the headers since the text before the last one.
  std::string text();
  /// `texts`: the others' text() by rank, empty where unknown; `own` is this rank. Says what the ranks disagree about,
  /// as far as all have come; empty where nothing is wrong.
  std::string difference(const std::vector<std::string>& texts, int own) const;

 private:
  struct PeerLog {
    std::uint64_t begin = 0, count = 0, chain = 0;
    std::vector<CallHeader> last{};  // begin to count
    const CallHeader* find(std::uint64_t number) const {
      return number < begin || number >= count ? nullptr : &last[static_cast<std::size_t>(number - begin)];
    }
  };
  static PeerLog read(const std::string& text);
  struct Entry {
    CallHeader header;
    std::uint64_t chain = 0;  // of this and all before
  };
  const Entry& entry(std::uint64_t number) const { return kept_[static_cast<std::size_t>(number % kKept)]; }

  std::uint64_t count_ = 0, sent_ = 0, sent_before_ = 0;
  std::vector<Entry> kept_ = std::vector<Entry>(kKept);  // by number modulo kKept
};

}  // namespace duet::ddp
