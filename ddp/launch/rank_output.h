// Where the lines go that the ranks of a job print.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "ddp/launch/launch.h"
#include "ddp/launch/output_thread.h"
#include "lib/base/descriptor.h"

namespace duet::ddp {

/// The files of one attempt: FOLDER/attempt_A/rank_R/{stdout,stderr}.log, as far as they are wanted.
class RankOutput : public std::enable_shared_from_this<RankOutput> {
 public:
  /// `folder` is empty if there are no files. Throws DataError for one that cannot be made.
  RankOutput(const LaunchOptions& options, OutputThread& thread, const std::string& folder, int attempt,
             int first_rank);
  /// Passes a line on in the output thread, to a file, the terminal or both. Never throws or blocks: a full disk must
  /// not end the job; it is reported once.
  void print(int rank, bool is_stderr, std::string_view line);
  /// The rank's error file; empty without a folder.
  std::string error_file(int rank) const;

 private:
  std::string folder_of(int rank) const;
  void write(int rank, bool is_stderr, std::string_view line);

  const LaunchOptions& options_;
  OutputThread& thread_;
  std::string folder_;
  std::map<int, std::array<Descriptor, 2>> files_;
  bool complained_ = false;
};

}  // namespace duet::ddp
