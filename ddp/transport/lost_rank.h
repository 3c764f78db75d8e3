// The error of a rank whose connection to another one has ended.
#pragma once

#include <string>

#include "lib/error.h"

namespace duet::ddp {

/// Thrown by a group of all ranks; that of some of them, which count from 0 of their own, throws its base.
class LostRank : public CommError {
 public:
  LostRank(const std::string& text, int rank, const ErrorOrigin& origin = {}) : CommError(text, origin), rank_(rank) {}
  /// The other one.
  int rank() const { return rank_; }

 private:
  int rank_;
};

}  // namespace duet::ddp
