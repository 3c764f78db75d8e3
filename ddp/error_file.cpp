#include "ddp/error_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>

#include "ddp/descriptor.h"

namespace duet::ddp {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxBytes = std::size_t{1} << 20;

/// The first kMaxBytes; empty unless it is a regular file. Never blocks: a rank may have put a FIFO in its place.
std::string contents(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat status {};
  if (!file.open() || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  std::string text(kMaxBytes, '\0');
  std::size_t have = 0;
  for (ssize_t got = 0; have < text.size(); have += static_cast<std::size_t>(got)) {
    got = ::read(file.get(), text.data() + have, text.size() - have);
    if (got < 0 && errno == EINTR)
      got = 0;
    else if (got <= 0)
      break;
  }
  text.resize(have);
  return text;
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
    const std::string whole_text = error.message + (error.account.empty() ? "" : "\n") + error.account;
    const Json extra = {{"timestamp", std::to_string(std::time(nullptr))},
                        {"py_callstack", whole_text},  // the part that torchrun prints
                        {"account", error.account},
                        {"rank", rank},
                        {"consequence", error.consequence},
                        {"monotonic_ns", error.monotonic_ns}};
    const Json whole = {{"message", {{"message", error.message}, {"extraInfo", extra}}}};
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
  const Json& account = member(extra, "account");
  const Json &consequence = member(extra, "consequence"), &when = member(extra, "monotonic_ns");
  if (account.is_string()) error.account = account;
  if (consequence.is_boolean()) error.consequence = consequence;
  if (when.is_number_integer()) error.monotonic_ns = when;
  return error;
}

}  // namespace duet::ddp
