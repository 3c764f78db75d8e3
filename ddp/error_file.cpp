#include "ddp/error_file.h"

#include <ctime>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>

namespace duet::ddp {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxBytes = std::size_t{1} << 20;

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
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  const Json whole = Json::parse(text, nullptr, false);
  if (!whole.is_object() || !whole.contains("message")) return {};
  const Json& message = whole["message"];
  if (message.is_string()) return RankError{.message = message};
  if (!message.is_object() || !message.value("message", Json()).is_string()) return {};
  RankError error{.message = message["message"]};
  const Json extra = message.value("extraInfo", Json());
  if (!extra.is_object()) return error;
  if (const Json account = extra.value("account", Json()); account.is_string()) error.account = account;
  const Json consequence = extra.value("consequence", Json()), when = extra.value("monotonic_ns", Json());
  if (consequence.is_boolean()) error.consequence = consequence;
  if (when.is_number_integer()) error.monotonic_ns = when;
  return error;
}

}  // namespace duet::ddp
