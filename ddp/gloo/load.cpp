#include "ddp/gloo/load.h"

#include <utility>

#include "ddp/gloo/module.h"
#include "lib/base/module_loader.h"
#include "lib/error.h"

namespace duet::ddp {
namespace {

/// Loaded once and never unloaded: its threads' code must not go away.
const LoadedModule& loaded() {
  static const LoadedModule module = load_module({.title = "the Gloo module",
                                                  .file = "libduet_gloo.so",
                                                  .build_folder = "ddp/gloo",
                                                  .symbol = kGlooConnectName,
                                                  .imports = kGlooImports,
                                                  .library = "libgloo"});
  return module;
}

}  // namespace

std::string why_no_gloo() { return loaded().error; }

std::unique_ptr<Transport> make_gloo_transport(Store& store, int rank, int size, const GlooOptions& options) {
  require<DeviceError>(loaded().symbol != nullptr, "backend gloo cannot be used: ", loaded().error);
  const auto connect = reinterpret_cast<GlooConnect>(loaded().symbol);
  return std::unique_ptr<Transport>(connect(store, rank, size, options));
}

std::unique_ptr<ProcessGroup> make_gloo_group(std::shared_ptr<Store> store, int rank, int size,
                                              const GlooOptions& options) {
  auto group = std::make_unique<TransportGroup>(make_gloo_transport(*store, rank, size, options), options.group);
  group->set_store(std::move(store));
  return group;
}

}  // namespace duet::ddp
