// What the ranks of a job know and others do not.
#pragma once

#include <string>
#include <string_view>

namespace duet::ddp {

/// Names a file that only its owner can read; its text without the blanks at its end is the secret. Goes first.
inline constexpr const char* kSecretFileVariable = "DUET_SECRET_FILE";
/// The secret itself.
inline constexpr const char* kSecretVariable = "DUET_SECRET";

/// The secret that this process was given; empty for none. Throws UsageError: a file that others can read or that
/// cannot be read, less than 16 or more than 4096 bytes.
std::string given_secret();

/// As many bytes that nobody can guess. Throws CommError.
std::string random_bytes(std::size_t count);

/// Takes as long whatever the texts hold.
bool equal_secrets(std::string_view one, std::string_view other);

}  // namespace duet::ddp
