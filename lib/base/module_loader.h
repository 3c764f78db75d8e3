// Parts of libduet that are loaded only when needed: they bring libraries that not every machine has.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace duet {

/// The places where a loadable module is looked for, and the function that it must export.
struct ModulePlace {
  const char* title;         // for messages: "the Gloo module"
  const char* file;          // "libduet_gloo.so"
  const char* build_folder;  // where a build leaves it, from the folder of libduet: "ddp/gloo"
  const char* symbol;
  const char* path_variable = nullptr;  // environment variable with the module's full path, if set
  /// Functions that the module imports from its own library, whose file's name begins with `library`.
  std::span<const char* const> imports{};
  std::string_view library{};
};

/// Why a shared object is not all there: its ELF headers name bytes beyond its end. Loading it would end the process by
/// SIGBUS. Empty if it is, and for what is no shared object of this machine, which dlopen() refuses.
std::string missing_part(const std::string& path);

struct LoadedModule {
  void* symbol = nullptr;
  std::string error;  // why there is no symbol
};

/// Opens the module, which is never unloaded. It is looked for at the path that its own environment variable names, in
/// the folder DUET_MODULE_DIR, else in the folder duet/ next to libduet, in libduet's build folder, and next to
/// libduet. Where another library of the program exports one of `imports`, the module is bound to its own library first
/// (RTLD_DEEPBIND), or refused in a program that runs under a sanitizer. Elsewhere it is not: it would not see a
/// malloc() that the program replaces.
LoadedModule load_module(const ModulePlace& place);

/// The module libduet_torch, which brings LibTorch along, by one of the functions that it exports.
LoadedModule load_torch_module(const char* symbol);

}  // namespace duet
