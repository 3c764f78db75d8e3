// Where the lines go that the ranks of a job print.
#pragma once

#include <array>
#include <map>
#include <string>
#include <string_view>

#include "ddp/descriptor.h"
#include "ddp/launch.h"

namespace duet::ddp {

/// The files of one attempt: FOLDER/attempt_A/rank_R/{stdout,stderr}.log, as far as they are wanted.
class RankOutput {
 public:
  /// `folder` is empty if there are no files. Throws DataError for one that cannot be made.
  RankOutput(const LaunchOptions& options, const std::string& folder, int attempt, int first_rank);
  /// Passes a line on, to a file, the terminal or both. Never throws: a full disk must not end the job; it is told
  /// once.
  void print(int rank, bool is_stderr, std::string_view line);
  /// Where the rank leaves why it failed; empty without a folder.
  std::string error_file(int rank) const;

 private:
  std::string folder_of(int rank) const;

  const LaunchOptions& options_;
  std::string folder_;
  std::map<int, std::array<Descriptor, 2>> files_;
  bool complained_ = false;
};

/// Writes all of it, or as much as anybody takes. Returns false with errno when it cannot.
bool write_all(int descriptor, std::string_view text);

}  // namespace duet::ddp
