#include "lib/base/module_loader.h"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>
#include <vector>

#include "lib/base/environment.h"
#include "lib/error.h"

namespace duet {
namespace {

namespace fs = std::filesystem;

/// The folder of libduet itself, wherever it was loaded from.
fs::path own_folder() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&own_folder), &info) == 0 || info.dli_fname == nullptr) return {};
  return fs::path(info.dli_fname).parent_path();
}

/// The value of an environment variable; empty if it is not set.
fs::path environment_path(const char* variable) {
  return variable == nullptr ? "" : environment_variable(variable).value_or("");
}

/// The file of this program, other than the module's own library, that exports what the module imports; or empty.
std::string other_exporter(const ModulePlace& place) {
  for (const char* const name : place.imports) {
    Dl_info info{};
    const void* const function = ::dlsym(RTLD_DEFAULT, name);
    if (function == nullptr || ::dladdr(function, &info) == 0 || info.dli_fname == nullptr) continue;
    const std::string file = fs::path(info.dli_fname).filename();
    if (!file.starts_with(place.library)) return file;
  }
  return {};
}

/// Sanitizers replace malloc(), and refuse RTLD_DEEPBIND.
bool sanitizer_runs() { return ::dlsym(RTLD_DEFAULT, "__sanitizer_print_stack_trace") != nullptr; }

std::vector<fs::path> candidates(const ModulePlace& place) {
  if (const fs::path named = environment_path(place.path_variable); !named.empty()) return {named};
  if (const fs::path folder = environment_path("DUET_MODULE_DIR"); !folder.empty()) return {folder / place.file};
  const fs::path own = own_folder();
  return {own / "duet" / place.file, own / place.build_folder / place.file, own / place.file};
}

}  // namespace

LoadedModule load_module(const ModulePlace& place) {
  const std::string other = other_exporter(place);
  if (!other.empty() && sanitizer_runs())
    return {nullptr, concat(place.title, " cannot be loaded together with ", other, ", which exports functions of ",
                            place.library, ": that needs RTLD_DEEPBIND, which sanitizers refuse")};
  const int mode = RTLD_NOW | RTLD_LOCAL | (other.empty() ? 0 : RTLD_DEEPBIND);
  std::string tried;
  for (const fs::path& path : candidates(place)) {
    std::error_code ignored;
    if (!fs::exists(path, ignored)) {
      tried += concat(tried.empty() ? "" : ", ", path.string());
      continue;
    }
    void* const module = ::dlopen(path.c_str(), mode);
    if (module == nullptr) return {nullptr, concat(place.title, " does not load: ", ::dlerror())};
    void* const symbol = ::dlsym(module, place.symbol);
    if (symbol == nullptr) return {nullptr, concat(path.string(), " is not duet's ", place.file)};
    return {symbol, ""};
  }
  return {nullptr, concat(place.title, " was not built or is not installed; looked for ", tried)};
}

LoadedModule load_torch_module(const char* symbol) {
  return load_module(
      {.title = "the LibTorch module", .file = "libduet_torch.so", .build_folder = "torch", .symbol = symbol});
}

}  // namespace duet
