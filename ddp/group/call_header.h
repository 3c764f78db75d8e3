// The header that ranks exchange at the start of a collective, so that ranks that disagree are named on all of them
// instead of hanging or mixing their numbers.
#pragma once

#include <cstdint>
#include <span>
#include <string>

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

}  // namespace duet::ddp
