#include "cli/output.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "ddp/descriptor.h"
#include "ddp/output_thread.h"
#include "lib/atomic_file.h"
#include "lib/error.h"
#include "lib/last_errno.h"

namespace duet::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kJson = "--json";

/// A pipe, a terminal or /dev/null: to be written to, and not to be replaced.
bool is_special(const std::string& path) {
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  return fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status);
}

}  // namespace

void require_output(const char* option, const std::string& path) {
  if (path.empty()) return;
  std::error_code ignored;
  require<DataError>(!fs::is_directory(path, ignored), option, " ", path, ": is a folder, expected a file");
  if (is_special(path)) {
    require<DataError>(::access(path.c_str(), W_OK) == 0, option, " ", path, ": ", last_errno);
    return;
  }
  const std::string parent = fs::path(path).parent_path().string(), folder = parent.empty() ? "." : parent;
  require<DataError>(fs::is_directory(folder, ignored), option, " ", path, ": there is no folder ", folder);
  std::string probe = folder + "/.duet-XXXXXX";
  const ddp::Descriptor file(::mkostemp(probe.data(), O_CLOEXEC));
  require<DataError>(file.open(), option, " ", path, ": cannot write in ", folder, ": ", last_errno);
  ::unlink(probe.c_str());
}

void write_output(const std::string& path, const std::string& text) {
  if (!is_special(path)) return write_atomically(path, text);
  const ddp::Descriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  require<DataError>(file.open() && ddp::write_all(file.get(), text), "cannot write ", path, ": ", last_errno);
}

bool to_stdout(const std::string& json) { return json == "-"; }

void require_json_output(const std::string& json) {
  if (!to_stdout(json)) require_output(kJson, json);
}

void write_json(const std::string& json, const std::string& text) {
  if (to_stdout(json))
    std::fputs(text.c_str(), stdout);
  else if (!json.empty())
    write_output(json, text);
}

std::FILE* text_stream(const std::string& json) { return to_stdout(json) ? stderr : stdout; }

}  // namespace duet::cli
