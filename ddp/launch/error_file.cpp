#include "ddp/launch/error_file.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>

#include "ddp/group/failure_report.h"
#include "ddp/group/flight_recorder.h"
#include "ddp/launch/job_processes.h"
#include "ddp/launch/rank_resolver.h"
#include "ddp/transport/transport.h"
#include "lib/base/descriptor.h"
#include "lib/base/text.h"
#include "lib/error.h"
#include "lib/io/atomic_file.h"
#include "lib/monotonic.h"

namespace duet::ddp {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxBytes = std::size_t{1} << 20;

/// The first kMaxBytes; empty unless it is a regular file. Never blocks: a rank may have put a FIFO in its place.
std::string contents(const std::string& path) {
  try {
    FileReader file(path);
    std::string text(std::min<std::uint64_t>(file.size(), kMaxBytes), '\0');
    file.read(std::as_writable_bytes(std::span(text)));
    return text;
  } catch (const DataError&) {
    return {};
  }
}

/// The member of an object; null where it has none. In place: copies of what is nested recurse, as deep as it is.
const Json& member(const Json& object, const char* name) {
  static const Json none;
  const auto found = object.find(name);
  return found == object.end() ? none : *found;
}

}  // namespace

bool write_error_file(const std::string& path, int rank, const RankError& error) noexcept {
  try {
    if (!may_be_rank_file(path)) return false;
    const std::string whole_text = error.message + (error.report.empty() ? "" : "\n") + error.report;
    const Json extra = {{"timestamp", std::to_string(std::time(nullptr))},
                        {"py_callstack", whole_text},  // the part that torchrun prints
                        {"report", error.report},
                        {"rank", rank},
                        {"consequence", error.consequence},
                        {"lost_rank", error.lost_rank},
                        {"by_signal", error.by_signal},
                        {"monotonic_ns", error.monotonic_ns}};
    const Json whole = {{"message", {{"message", error.message}, {"extraInfo", extra}}}};
    const HeldSizeSignal held;
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file << whole.dump(-1, ' ', false, Json::error_handler_t::replace) << "\n";
    return static_cast<bool>(file.flush());
  } catch (const std::exception&) {
    return false;
  }
}

std::optional<RankError> read_error_file(const std::string& path) {
  const Json whole = Json::parse(contents(path), nullptr, false);
  const Json& message = member(whole, "message");
  if (message.is_string()) return RankError{.message = message};
  const Json &reason = member(message, "message"), &extra = member(message, "extraInfo");
  if (!reason.is_string()) return {};
  RankError error{.message = reason};
  const Json& report = member(extra, "report");
  const Json &consequence = member(extra, "consequence"), &lost_rank = member(extra, "lost_rank"),
             &by_signal = member(extra, "by_signal"), &when = member(extra, "monotonic_ns");
  if (report.is_string()) error.report = report;
  if (consequence.is_boolean()) error.consequence = consequence;
  if (lost_rank.is_number_integer()) error.lost_rank = lost_rank;
  if (by_signal.is_boolean()) error.by_signal = by_signal;
  if (when.is_number_integer()) error.monotonic_ns = when;
  return error;
}

namespace {

std::string own_report(int rank) noexcept {
  try {
    return failure_report({{rank, flight_recorder()->snapshot()}}, rank, monotonic_ns());
  } catch (const std::exception&) {  // out of memory, say
    return {};
  }
}

}  // namespace

std::string unprinted_report() noexcept {
  return launched_rank() == 0 && std::getenv(kJobVariable) == nullptr ? own_report(0) : std::string();
}

void leave_error(const RankError& error) noexcept {
  const char* const path = std::getenv(kErrorFileVariable);
  if (path == nullptr || *path == '\0') return;
  const int rank = launched_rank().value_or(-1);
  RankError whole = error;
  whole.report = own_report(rank);
  write_error_file(path, rank, whole);
}

void leave_error(const std::exception& error) noexcept {
  const auto* const own = dynamic_cast<const Error*>(&error);
  const auto* const lost = dynamic_cast<const LostRank*>(&error);
  leave_error(RankError{.message = error.what(),
                        .consequence = dynamic_cast<const CommError*>(&error) != nullptr,
                        .lost_rank = lost ? lost->rank() : -1,
                        .monotonic_ns = own ? own->when() : monotonic_ns()});
}

namespace {

std::atomic<std::terminate_handler> terminates = nullptr;  // the program's own

[[noreturn]] void leave_uncaught() {
  try {
    if (std::current_exception()) throw;
  } catch (const std::exception& error) {
    leave_error(error);
  } catch (...) {
    leave_error(RankError{.message = "an unknown exception", .monotonic_ns = monotonic_ns()});
  }
  if (const std::terminate_handler own = terminates) own();
  std::abort();
}

}  // namespace

void leave_uncaught_errors() {
  static const auto before = std::getenv(kErrorFileVariable) == nullptr ? nullptr : std::set_terminate(leave_uncaught);
  if (terminates == nullptr) terminates = before;
}

int report_failure(const std::exception& error, const char* program) noexcept {
  const auto rank = launched_rank();
  const std::string prefix = rank ? concat("rank ", *rank, ": ") : "";
  std::fprintf(stderr, "%s%s%s\n", program, prefix.c_str(), printable(error.what()).c_str());
  if (const std::string report = unprinted_report(); !report.empty()) std::fprintf(stderr, "%s\n", report.c_str());
  leave_error(error);
  return dynamic_cast<const UsageError*>(&error) != nullptr ? 2 : 1;
}

}  // namespace duet::ddp
