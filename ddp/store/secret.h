// The shared secret of a job's ranks, and folders that only one user can use.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace duet::ddp {

/// Names a file that only its owner can read; its text without the blanks at its end is the secret. Takes precedence.
inline constexpr const char* kSecretFileVariable = "DUET_SECRET_FILE";
/// The secret itself.
inline constexpr const char* kSecretVariable = "DUET_SECRET";

inline constexpr std::size_t kSecretBytes = 32;            // length of the secrets that duet makes
inline constexpr const char* kSecretKey = "/duet/secret";  // of the random part of a store's secret

/// The secret that this process was given; empty for none. Throws UsageError: a file of another user, or that others
/// can read, or that cannot be read; less than 16 or more than 4096 bytes.
std::string given_secret();

/// Makes DUET_SECRET empty in this process's environment and in what /proc shows of it, so that no program that a rank
/// starts inherits it; given_secret() still finds it. DUET_SECRET_FILE stays: a path is no secret.
void hide_secret();

/// The secret of this user on this host, which no other user can read: in a file in a private folder (see
/// private_folder()) that the first caller makes, and that stays. Throws CommError, UsageError when the file is
/// damaged.
std::string user_secret();

/// So many cryptographically random bytes. Throws CommError.
std::string random_bytes(std::size_t count);

/// `count` cryptographically random bytes, two hexadecimal digits each. Throws CommError.
std::string random_hex(std::size_t count);

/// HMAC-SHA256 of the text under the key, in 32 bytes.
std::string hmac(std::string_view key, std::string_view text);

/// HMAC-SHA256 of the text under the secret, in 64 hexadecimal digits.
std::string proof_of(std::string_view secret, std::string_view text);

/// Compares in constant time.
bool equal_secrets(std::string_view one, std::string_view other);

/// A folder for this user alone, in the folder for temporary files: duet-UID, with `suffix`. Throws CommError when it
/// cannot be made, or is there and another user's or open to others.
std::string private_folder(const std::string& suffix);

/// A folder that only this user can use, the same for all ranks of a job and new for each of its meetings. The
/// destructor removes it, with the store in it: by then all ranks have opened that, or will not come.
class MeetingFolder {
 public:
  /// `job` names the job on this host, `meeting` counts. Throws as private_folder().
  MeetingFolder(const std::string& job, int meeting);
  ~MeetingFolder();
  MeetingFolder(const MeetingFolder&) = delete;
  MeetingFolder& operator=(const MeetingFolder&) = delete;
  std::string store() const { return folder_ + "/store"; }

 private:
  std::string folder_;
};

}  // namespace duet::ddp
