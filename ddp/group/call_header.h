// The header that ranks exchange at the start of a collective, so that ranks that disagree are named on all of them
// instead of hanging or mixing their numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
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
  std::uint8_t blocks = 0;  // of TreeParts
  std::uint8_t padding[4] = {};
  BatchMark batch{};

  bool operator==(const CallHeader&) const = default;
};

CallHeader header_of(const Call& call, std::uint64_t sequence);
/// "all_reduce #4 of 1000 f32 (sum)", "broadcast of 8 f32 from rank 0"; `number` follows the collective's name.
std::string describe(Collective op, std::int64_t count, DType dtype, ReduceOp reduce, int root,
                     const std::string& number = {});
std::string describe(const CallHeader& header);
/// "rows 0 to 4 of 8 in step 2, order 1f00ab37".
std::string describe(const BatchMark& batch);
/// A transport's tag for this call's messages. It covers all of the header but the rows, so that a payload of another
/// size is never matched: Gloo aborts the process on one.
std::uint64_t tag_of(const CallHeader& header, int phase);
/// A tag that two ranks agree on even if they disagree about everything but the sequence.
std::uint64_t header_tag(const CallHeader& header);

/// Adds an update to what a rank has done, if that is known. Equal settings count once, as ranks may share out the
/// parameters.
void add_update(StepMark& done, const nn::UpdateSettings& settings);

/// Whether the ranks' headers, given one by one, are of one call, and of rows that together are whole batches.
class Agreement {
 public:
  /// Whether two ranks make the same call, with rows of the same batches, after equally many forwards and equal
  /// updates, as far as both know these. A rank that has none of the rows does not know them.
  static bool same(const CallHeader& one, const CallHeader& other);
  void add(const CallHeader& header);
  /// Whether all added headers are of one call.
  bool same() const { return same_; }
  /// With all ranks' headers added: whether their rows are whole batches.
  bool whole() const { return same_ && (first_.batch.whole == 0 || cover_ == first_.batch.whole); }

 private:
  CallHeader first_;  // with the first batch that is known
  std::uint64_t cover_ = 0;
  bool any_ = false, same_ = true;
};

struct RankHeader {
  int rank = 0;
  CallHeader header;
};
/// "the ranks disagree: rank 0 calls barrier; ranks 1, 2 call broadcast of 8 f32 from rank 0", "the ranks disagree:
/// ranks 0, 1 call all_reduce of 9 f32 (sum) with rows 0 to 4 of 8 in step 2; ...", "the learning rate of rank 1 is
/// 0.02, expected 0.01 as on rank 0: ...", "the parameters of rank 1 are not those of rank 0: ...". It ends with what
/// to do.
std::string disagreement(std::span<const RankHeader> ranks);
inline constexpr std::string_view kUnlikeParameters = "the parameters of rank ";

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
  /// What is sent to the other ranks: the headers since the text before the last one, or only their number and hash,
  /// by which a difference is found, but not which call it is.
  std::string text(bool with_headers = true);
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
  /// The first collective, of those of which all headers are known, whose ranks' rows are not whole batches.
  std::optional<std::uint64_t> first_incomplete(const std::vector<PeerLog>& others, int own) const;
  struct Entry {
    CallHeader header;
    std::uint64_t chain = 0;  // chained hash of this header and all before it
  };
  const Entry& entry(std::uint64_t number) const { return kept_[static_cast<std::size_t>(number % kKept)]; }

  std::uint64_t count_ = 0, sent_ = 0, sent_before_ = 0;
  std::vector<Entry> kept_ = std::vector<Entry>(kKept);  // by number modulo kKept
};

}  // namespace duet::ddp
