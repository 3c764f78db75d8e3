#include "ddp/gloo_group.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "ddp/gloo/module.h"
#include "lib/error.h"

namespace duet::ddp {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModule = "libduet_gloo.so";

/// The folder of libduet itself, wherever it was loaded from.
fs::path own_folder() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&own_folder), &info) == 0 || info.dli_fname == nullptr) return {};
  return fs::path(info.dli_fname).parent_path();
}

std::vector<fs::path> places() {
  std::vector<fs::path> list;
  if (const char* folder = std::getenv("DUET_MODULE_DIR"); folder != nullptr && *folder) {
    list.push_back(fs::path(folder) / kModule);
    return list;
  }
  const fs::path own = own_folder();
  list.push_back(own / "duet" / kModule);          // installed
  list.push_back(own / "ddp" / "gloo" / kModule);  // in a build folder
  list.push_back(own / kModule);
  return list;
}

struct Loaded {
  GlooConnect connect = nullptr;
  std::string error;
};

Loaded load() {
  std::string tried;
  for (const fs::path& place : places()) {
    std::error_code ignored;
    if (!fs::exists(place, ignored)) {
      tried += concat(tried.empty() ? "" : ", ", place.string());
      continue;
    }
    void* module = ::dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (module == nullptr) return {nullptr, concat("the Gloo module does not load: ", ::dlerror())};
    void* symbol = ::dlsym(module, kGlooConnectName);
    if (symbol == nullptr) return {nullptr, concat(place.string(), " is not duet's Gloo module")};
    return {reinterpret_cast<GlooConnect>(symbol), ""};
  }
  return {nullptr, concat("the Gloo module was not built or is not installed; looked for ", tried)};
}

/// Loaded once and never unloaded: its threads' code must not go away.
const Loaded& loaded() {
  static const Loaded module = load();
  return module;
}

}  // namespace

std::string why_no_gloo() { return loaded().error; }

std::unique_ptr<ProcessGroup> make_gloo_group(Store& store, int rank, int size, const GlooOptions& options) {
  require<DeviceError>(loaded().connect != nullptr, "backend gloo cannot be used: ", loaded().error);
  std::unique_ptr<Transport> transport(loaded().connect(store, rank, size, options));
  return std::make_unique<TransportGroup>(std::move(transport), options.group);
}

}  // namespace duet::ddp
