#include "lib/nn/network_module.h"

#include <dlfcn.h>

#include <exception>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "lib/base/module_loader.h"
#include "lib/error.h"

namespace duet::nn {

static_assert(std::string_view(kVersion) == DUET_VERSION, "kVersion is that of the project");

const NetworkModule& load_network_module(const std::string& path) {
  constexpr const char* kSymbol = "duet_network";
  std::error_code unknown;
  require<DataError>(std::filesystem::is_regular_file(path, unknown), path, ": no such file, expected a shared object");
  const std::string missing = missing_part(path);
  require<DataError>(missing.empty(), "cannot load a network: ", missing);
  // A name without a folder would be looked for among the system's libraries.
  void* const object = ::dlopen(std::filesystem::absolute(path).c_str(), RTLD_NOW | RTLD_LOCAL);
  require<DataError>(object != nullptr, "cannot load a network: ", ::dlerror());
  void* const symbol = ::dlsym(object, kSymbol);
  require<DataError>(symbol != nullptr, path, ": exports no function ", kSymbol,
                     ", which gives the network of a shared object (lib/nn/network_module.h)");
  const NetworkModule* const network = reinterpret_cast<const NetworkModule* (*)()>(symbol)();
  require<DataError>(network != nullptr && network->version != nullptr, path, ": its ", kSymbol, " gives nothing");
  require<DataError>(std::string_view(network->version) == kVersion, path, ": was built against duet ",
                     network->version, ", this is duet ", kVersion, "; build it again");
  require<UsageError>(network->make != nullptr, path, ": its network has no make()");
  require<UsageError>(network->sample_shape.rank() == 3 && network->classes >= 0, path, ": its network takes samples ",
                      network->sample_shape, " and gives ", network->classes,
                      " classes, expected (channels, rows, columns), and 0 or more classes");
  return *network;
}

const NetworkModule& load_script_network(const std::string& path, const Shape& sample_shape) {
  using Load = const NetworkModule* (*)(const char* path, const Shape* sample_shape);
  std::error_code unknown;
  require<DataError>(std::filesystem::is_regular_file(path, unknown), path, ": no such file, expected TorchScript");
  static const LoadedModule module = load_torch_module("duet_torch_script");
  require<DataError>(module.symbol != nullptr, path, " needs LibTorch: ", module.error);
  return *reinterpret_cast<Load>(module.symbol)(path.c_str(), &sample_shape);
}

std::unique_ptr<Module> make_network(const NetworkModule& network, const std::string& path, const Shape& sample_shape,
                                     std::int64_t classes) {
  std::unique_ptr<Module> made;
  try {
    made = network.make(sample_shape, classes);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw DataError(concat(path, ": its network was not made: ", error.what()));
  } catch (...) {
    throw DataError(concat(path, ": its network was not made: it threw what is no std::exception"));
  }
  require<UsageError>(made != nullptr, path, ": its make() gives no network");
  return made;
}

}  // namespace duet::nn
