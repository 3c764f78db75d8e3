#include "lib/base/module_loader.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
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

std::string missing_part(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const auto read = [&](std::uint64_t at, void* out, std::size_t bytes) {
    return bool(
        file.seekg(static_cast<std::streamoff>(at)).read(static_cast<char*>(out), static_cast<std::streamsize>(bytes)));
  };
  ElfW(Ehdr) head{};
  if (!read(0, &head, sizeof(head)) || std::memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 ||
      head.e_ident[EI_CLASS] != (sizeof(void*) == 8 ? ELFCLASS64 : ELFCLASS32) ||
      head.e_phentsize != sizeof(ElfW(Phdr)))
    return {};
  std::error_code error;
  const std::uint64_t size = fs::file_size(path, error);
  std::uint64_t end = head.e_phoff + std::uint64_t{head.e_phnum} * head.e_phentsize;
  if (head.e_shoff != 0) end = std::max(end, head.e_shoff + std::uint64_t{head.e_shnum} * head.e_shentsize);
  for (std::uint64_t i = 0; i < head.e_phnum; ++i) {
    ElfW(Phdr) segment{};
    if (!read(head.e_phoff + i * sizeof(segment), &segment, sizeof(segment))) break;
    end = std::max<std::uint64_t>(end, segment.p_offset + segment.p_filesz);
  }
  if (error || end <= size) return {};
  return concat(path, " has ", size, " bytes, but its ELF headers name ", end,
                ": it was truncated, or is not written yet");
}

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
    if (const std::string missing = missing_part(path.string()); !missing.empty())
      return {nullptr, concat(place.title, " does not load: ", missing)};
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
