#include "lib/error.h"

#include <exception>
#include <initializer_list>
#include <locale>
#include <sstream>
#include <string>

namespace duet {
namespace {

template <class E>
void throw_if_it_is_a(const Error& cause, const std::string& text, const ErrorOrigin& origin) {
  if (dynamic_cast<const E*>(&cause) != nullptr) throw E(text, origin);
}

template <class... Types>
[[noreturn]] void throw_as_first_of(const Error& cause, const std::string& text, const ErrorOrigin& origin) {
  (throw_if_it_is_a<Types>(cause, text, origin), ...);
  throw Error(text, origin);
}

}  // namespace

std::string concat_parts(std::initializer_list<TextPart> parts) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  for (const TextPart& part : parts) out << part;
  return out.str();
}

void rethrow_with_prefix(const std::string& prefix, bool in_layer) {
  try {
    throw;
  } catch (const Error& cause) {
    throw_as_first_of<ShapeError, DeviceError, NumericError, CommError, DataError, UsageError>(
        cause, prefix + cause.what(), {.when = cause.when(), .in_layer = in_layer || cause.origin().in_layer});
  } catch (const std::exception& cause) {
    std::throw_with_nested(Error(prefix + cause.what()));
  }
}

}  // namespace duet
