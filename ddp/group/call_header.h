// The header that ranks exchange at the start of a collective, so that ranks that disagree are named on all of them
// instead of hanging or mixing their numbers.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ddp/group/process_group.h"

namespace duet::ddp {

struct CallHeader {
  std::uint64_t sequence = 0;  // number of the collective, or of the message between two ranks
  std::int64_t count = 0;      // elements per rank
  std::int32_t root = 0;
  std::int32_t tag = 0;
  std::uint8_t op = 0;
  std::uint8_t dtype = 0;
  std::uint8_t reduce = 0;
  std::uint8_t padding[5] = {};

  bool operator==(const CallHeader&) const = default;
};

CallHeader header_of(const Call& call, std::uint64_t sequence);
/// "all_reduce #4 of 1000 f32 (sum)", "broadcast of 8 f32 from rank 0"; `number` follows the collective's name.
std::string describe(Collective op, std::int64_t count, DType dtype, ReduceOp reduce, int root,
                     const std::string& number = {});
std::string describe(const CallHeader& header);
/// A transport's tag for this call's messages. It covers all of the header, so that a payload of another size is never
/// matched: Gloo aborts the process on one.
std::uint64_t tag_of(const CallHeader& header, int phase);
/// A tag that two ranks agree on even if they disagree about everything but the sequence.
std::uint64_t header_tag(const CallHeader& header);

/// What a rank calls.
struct RankHeader {
  int rank = 0;
  CallHeader header;
};
/// "the ranks disagree: rank 0 calls barrier; ranks 1, 2 call broadcast of 8 f32 from rank 0".
std::string disagreement(std::span<const RankHeader> ranks);

/// The headers of a rank's collectives, for libraries that do not compare them: ranks exchange them from time to time.
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
