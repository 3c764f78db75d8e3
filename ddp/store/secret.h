// The shared secret of a job's ranks.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace duet::ddp {

/// Names a file that only its owner can read; its text without the blanks at its end is the secret. Takes precedence.
inline constexpr const char* kSecretFileVariable = "DUET_SECRET_FILE";
/// The secret itself.
inline constexpr const char* kSecretVariable = "DUET_SECRET";

inline constexpr std::size_t kSecretBytes = 32;  // of those that duet makes

/// The secret that this process was given; empty for none. Throws UsageError: a file that others can read or that
/// cannot be read, less than 16 or more than 4096 bytes.
std::string given_secret();

/// The secret of this user on this host, which no other user can read: in a file in a private folder (see
/// meeting_folder.h) that the first caller makes, and that stays. Throws CommError, UsageError when the file is
/// damaged.
std::string user_secret();

/// So many cryptographically random bytes. Throws CommError.
std::string random_bytes(std::size_t count);

/// HMAC-SHA256 of the text under the secret, in 64 hexadecimal digits.
std::string proof_of(std::string_view secret, std::string_view text);

/// Compares in constant time.
bool equal_secrets(std::string_view one, std::string_view other);

}  // namespace duet::ddp
