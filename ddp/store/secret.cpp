#include "ddp/store/secret.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <ios>
#include <mutex>
#include <span>
#include <system_error>

#include "lib/base/descriptor.h"
#include "lib/base/environment.h"
#include "lib/base/sha256.h"
#include "lib/base/text.h"
#include "lib/error.h"

extern "C" char** environ;

namespace duet::ddp {

std::string private_folder(const std::string& suffix) {
  std::string name = concat("duet-", ::geteuid(), suffix);
  std::replace_if(
      name.begin(), name.end(),
      [](unsigned char byte) { return !std::isalnum(byte) && std::strchr("-_.@", byte) == nullptr; }, '_');
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
  require<CommError>(!error, "there is no folder for temporary files: ", error.message());
  std::string folder = (parent / name).string();
  require<CommError>(::mkdir(folder.c_str(), 0700) == 0 || errno == EEXIST, "the ranks cannot meet in ", folder, ": ",
                     last_errno);
  struct stat status {};
  const bool own = ::lstat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == ::geteuid() &&
                   (status.st_mode & 077) == 0;
  require<CommError>(own, "the ranks cannot meet in ", folder, ": it is not a folder that only this user can use");
  return folder;
}

MeetingFolder::MeetingFolder(const std::string& job, int meeting)
    : folder_(private_folder(concat("-", job, "-", meeting))) {}

MeetingFolder::~MeetingFolder() {
  ::unlink(store().c_str());
  ::rmdir(folder_.c_str());
}

namespace {

constexpr std::size_t kLeastBytes = 16, kMostBytes = 4096;

/// `source` is what errors begin with.
std::string read_secret(const std::string& path, const char* source) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  require<UsageError>(file.open(), source, ": cannot open ", path, ": ", last_errno);
  struct stat status {};
  require<UsageError>(::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode), source, ": ", path,
                      " is not a file");
  require<UsageError>(status.st_uid == ::geteuid() && (status.st_mode & 077) == 0, source, ": ", path, " is user ",
                      status.st_uid, "'s, with mode 0", std::oct, status.st_mode & 07777, std::dec, "; expected user ",
                      ::geteuid(), "'s, with mode 0600: no one else may read or change it");
  std::string text(kMostBytes + 1, '\0');
  const ssize_t got = ::read(file.get(), text.data(), text.size());
  require<UsageError>(got >= 0, source, ": cannot read ", path, ": ", last_errno);
  text.resize(static_cast<std::size_t>(got));
  return text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
}

/// Writes a new secret to `path`, unless another process has done so before: the file is never there half written.
void make_secret(const std::string& path) {
  const std::string draft = concat(path, ".", random_hex(8)), text = random_hex(kSecretBytes);
  const Descriptor file(::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  require<CommError>(file.open(), "cannot make ", draft, ": ", last_errno);
  const ssize_t wrote = ::write(file.get(), text.data(), text.size());
  const bool made =
      wrote == static_cast<ssize_t>(text.size()) && (::link(draft.c_str(), path.c_str()) == 0 || errno == EEXIST);
  const std::string failure =
      made ? "" : errno_text(wrote < 0 || wrote == static_cast<ssize_t>(text.size()) ? errno : ENOSPC);
  ::unlink(draft.c_str());
  require<CommError>(made, "cannot make the secret of this user's ranks, ", path, ": ", failure);
}

std::mutex hidden_mutex;
std::string hidden;  // DUET_SECRET, once it is not in the environment any more

/// Overwrites an entry of the environment behind its name, in place: other threads may be reading their own entries.
/// The kernel does it, which fails where the memory is read-only.
bool wipe(char* value) {
  const Descriptor zeros(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
  const std::size_t length = std::strlen(value);
  return zeros.open() && ::read(zeros.get(), value, length) == static_cast<ssize_t>(length);
}

}  // namespace

void hide_secret() {
  const std::lock_guard lock(hidden_mutex);
  const auto text = environment_variable(kSecretVariable);
  if (!text) return;
  hidden = *text;
  const std::string start = concat(kSecretVariable, "=");
  bool wiped = true;
  for (char** entry = environ; *entry != nullptr; ++entry)
    if (std::string_view(*entry).starts_with(start)) wiped = wipe(*entry + start.size()) && wiped;
  if (!wiped) ::unsetenv(kSecretVariable);
}

std::string given_secret() {
  const auto path = environment_variable(kSecretFileVariable);
  std::string text;
  {
    const std::lock_guard lock(hidden_mutex);
    text = environment_variable(kSecretVariable).value_or(hidden);
  }
  if (!path && text.empty()) return {};
  const std::string secret = path ? read_secret(*path, kSecretFileVariable) : text;
  require<UsageError>(secret.size() >= kLeastBytes && secret.size() <= kMostBytes,
                      path ? kSecretFileVariable : kSecretVariable, ": a secret has ", kLeastBytes, " to ", kMostBytes,
                      " bytes, got ", secret.size());
  return secret;
}

std::string user_secret() {
  const std::string path = private_folder("") + "/secret";
  if (::access(path.c_str(), F_OK) != 0) make_secret(path);
  std::string secret = read_secret(path, "the secret of this user's ranks");
  require<UsageError>(secret.size() == 2 * kSecretBytes, "the secret of this user's ranks: ", path, " has ",
                      secret.size(), " bytes, expected ", 2 * kSecretBytes, "; removing it would help");
  return secret;
}

std::string random_bytes(std::size_t count) {
  std::string bytes(count, '\0');
  require<CommError>(::getrandom(bytes.data(), count, 0) == static_cast<ssize_t>(count),
                     "the system has no random bytes: ", last_errno);
  return bytes;
}

std::string random_hex(std::size_t count) {
  const std::string bytes = random_bytes(count);
  return to_hex(std::as_bytes(std::span(bytes)));
}

std::string hmac(std::string_view key, std::string_view text) {
  const Sha256::Digest digest = hmac_sha256(std::as_bytes(std::span(key)), std::as_bytes(std::span(text)));
  return {digest.begin(), digest.end()};
}

std::string proof_of(std::string_view secret, std::string_view text) {
  const std::string digest = hmac(secret, text);
  return to_hex(std::as_bytes(std::span(digest)));
}

bool equal_secrets(std::string_view one, std::string_view other) {
  if (one.size() != other.size()) return false;
  unsigned difference = 0;
  for (std::size_t i = 0; i < one.size(); ++i) difference |= static_cast<unsigned char>(one[i] ^ other[i]);
  return difference == 0;
}

}  // namespace duet::ddp
