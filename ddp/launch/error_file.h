// What a rank does with its error, and the file to which it writes it, in the form of torchrun's error files: the
// launcher's and torchrun's reports then name the cause, whichever launcher started the rank.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>

namespace duet::ddp {

/// Names the file to a rank.
inline constexpr const char* kErrorFileVariable = "TORCHELASTIC_ERROR_FILE";

struct RankError {
  std::string message;
  std::string report{};            // where the rank was, see ddp/group/failure_report.h
  bool consequence = false;        // it follows from another rank's failure: a peer was lost
  int lost_rank = -1;              // that peer, where it is known
  bool by_signal = false;          // the message names a signal that the rank received
  std::int64_t monotonic_ns = -1;  // when, by CLOCK_MONOTONIC; -1: not given (a writer other than duet)
};

/// Writes {"message": {"message": TEXT, "extraInfo": {"timestamp": SECONDS, ...}}}. Returns false if that fails:
/// nothing is left to report it to.
bool write_error_file(const std::string& path, int rank, const RankError& error) noexcept;
/// Nothing if there is no such file, or none that can be read.
std::optional<RankError> read_error_file(const std::string& path);

/// Writes an error, with where this rank was, to the launcher's error file, where there is one.
void leave_error(const RankError& error) noexcept;
void leave_error(const std::exception& error) noexcept;

/// Makes std::terminate() leave the exception that nothing has caught, before the program's own handler runs. Has an
/// effect once, and in a rank only that has such a file.
void leave_uncaught_errors();

/// Where this rank was, in lines as LaunchResult::report: on rank 0 of a job that another launcher than duet's
/// started, else empty.
std::string unprinted_report() noexcept;

/// Reports an exception from main(): prints one line on stderr, with the rank if there is one, and writes the
/// launcher's error file. By that file the launcher names the cause, and an elastic job ends instead of replacing the
/// rank. Returns the exit code: 2 for UsageError, else 1. `program` is the start of the line.
int report_failure(const std::exception& error, const char* program = "") noexcept;

}  // namespace duet::ddp
