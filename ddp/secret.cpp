#include "ddp/secret.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ddp/descriptor.h"
#include "ddp/rank_resolver.h"
#include "lib/error.h"
#include "lib/last_errno.h"

namespace duet::ddp {
namespace {

constexpr std::size_t kLeastBytes = 16, kMostBytes = 4096;

std::string read_secret(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  require<UsageError>(file.open(), kSecretFileVariable, ": cannot open ", path, ": ", last_errno);
  struct stat status {};
  require<UsageError>(::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode), kSecretFileVariable, ": ", path,
                      " is not a file");
  require<UsageError>((status.st_mode & 077) == 0, kSecretFileVariable, ": others than its owner can read ", path,
                      "; chmod 600 would help");
  std::string text(kMostBytes + 1, '\0');
  const ssize_t got = ::read(file.get(), text.data(), text.size());
  require<UsageError>(got >= 0, kSecretFileVariable, ": cannot read ", path, ": ", last_errno);
  text.resize(static_cast<std::size_t>(got));
  return text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
}

}  // namespace

std::string given_secret() {
  const auto path = environment_variable(kSecretFileVariable);
  const auto text = environment_variable(kSecretVariable);
  if (!path && !text) return {};
  const std::string secret = path ? read_secret(*path) : *text;
  require<UsageError>(secret.size() >= kLeastBytes && secret.size() <= kMostBytes,
                      path ? kSecretFileVariable : kSecretVariable, ": a secret has ", kLeastBytes, " to ", kMostBytes,
                      " bytes, got ", secret.size());
  return secret;
}

std::string random_bytes(std::size_t count) {
  std::string bytes(count, '\0');
  require<CommError>(::getrandom(bytes.data(), count, 0) == static_cast<ssize_t>(count),
                     "the system has no random bytes: ", last_errno);
  return bytes;
}

bool equal_secrets(std::string_view one, std::string_view other) {
  if (one.size() != other.size()) return false;
  unsigned difference = 0;
  for (std::size_t i = 0; i < one.size(); ++i) difference |= static_cast<unsigned char>(one[i] ^ other[i]);
  return difference == 0;
}

}  // namespace duet::ddp
