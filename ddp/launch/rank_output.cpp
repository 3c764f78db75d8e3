#include "ddp/launch/rank_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "lib/base/text.h"
#include "lib/error.h"
#include "lib/parse_number.h"

namespace duet::ddp {
namespace {

constexpr int kStdout = 1, kStderr = 2;  // bits of RankStreams

int stream_bits(std::string_view text, const std::string& whole) {
  require<UsageError>(text.size() == 1 && text[0] >= '0' && text[0] <= '3', "'", whole,
                      "': expected 0 (nothing), 1 (stdout), 2 (stderr), 3 (both), or RANK:NUMBER,...");
  return text[0] - '0';
}

}  // namespace

int RankStreams::of(int rank) const {
  const auto found = ranks.find(rank);
  return found == ranks.end() ? every : found->second;
}

bool RankStreams::any() const {
  for (const auto& [rank, bits] : ranks)
    if (bits != 0) return true;
  return every != 0;
}

RankStreams parse_streams(const std::string& text) {
  RankStreams streams;
  if (text.find(':') == std::string::npos) {
    streams.every = stream_bits(text, text);
    return streams;
  }
  for (std::string_view left = text; !left.empty();) {
    const std::string_view item = left.substr(0, left.find(','));
    left.remove_prefix(std::min(left.size(), item.size() + 1));
    const std::size_t colon = std::min(item.find(':'), item.size());
    const auto rank = parse_number<int>(item.substr(0, colon));
    require<UsageError>(rank.value_or(-1) >= 0 && colon < item.size(), "'", text, "': '", item, "' is not RANK:NUMBER");
    require<UsageError>(streams.ranks.count(*rank) == 0, "'", text, "': rank ", *rank, " twice");
    streams.ranks[*rank] = stream_bits(item.substr(colon + 1), text);
  }
  return streams;
}

RankOutput::RankOutput(const LaunchOptions& options, OutputThread& thread, const std::string& folder, int attempt,
                       int first_rank)
    : options_(options), thread_(thread), folder_(folder.empty() ? "" : concat(folder, "/attempt_", attempt)) {
  if (folder_.empty()) return;
  for (int rank = first_rank; rank < first_rank + options.ranks; ++rank) {
    std::error_code failed;
    std::filesystem::create_directories(folder_of(rank), failed);
    require<DataError>(!failed, "cannot make the folder ", folder_of(rank), ": ", failed.message());
    const int bits = options.tee.of(rank) | options.redirects.of(rank);
    for (const int bit : {kStdout, kStderr}) {
      if ((bits & bit) == 0) continue;
      const std::string path = folder_of(rank) + (bit == kStdout ? "/stdout.log" : "/stderr.log");
      Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
      require<DataError>(file.open(), "cannot write ", path, ": ", last_errno);
      files_[rank][static_cast<std::size_t>(bit - 1)] = std::move(file);
    }
  }
}

std::string RankOutput::folder_of(int rank) const { return concat(folder_, "/rank_", rank); }
std::string RankOutput::error_file(int rank) const { return folder_.empty() ? "" : folder_of(rank) + "/error.json"; }

void RankOutput::print(int rank, bool is_stderr, std::string_view line) {
  thread_.post(line.size(), [self = shared_from_this(), rank, is_stderr, text = std::string(line)] {
    self->write(rank, is_stderr, text);
  });
}

void RankOutput::write(int rank, bool is_stderr, std::string_view line) {
  const int bit = is_stderr ? kStderr : kStdout;
  const bool teed = (options_.tee.of(rank) & bit) != 0;
  const auto found = files_.find(rank);
  if (found != files_.end() && found->second[static_cast<std::size_t>(bit - 1)].open()) {
    const bool wrote = write_all(found->second[static_cast<std::size_t>(bit - 1)].get(), concat(line, "\n"));
    if (!wrote && !complained_) {
      complained_ = true;
      write_all(STDERR_FILENO,
                concat("cannot write all lines of rank ", rank, " into ", folder_of(rank), ": ", last_errno, "\n"));
    }
    if (!teed) return;
  }
  if (options_.on_line) return options_.on_line(rank, is_stderr, line);
  // One write, so that lines of several ranks never mix.
  const bool label = teed || options_.label_lines;
  if (!write_all(is_stderr ? STDERR_FILENO : STDOUT_FILENO,
                 label ? concat("[rank ", rank, "] ", line, "\n") : concat(line, "\n")))
    thread_.note_failure(errno);
}

}  // namespace duet::ddp
