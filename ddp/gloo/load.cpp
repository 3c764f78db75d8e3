#include "ddp/gloo/load.h"

#include "ddp/store/network.h"
#include "lib/base/module_loader.h"
#include "lib/error.h"

namespace duet::ddp {
namespace {

/// The module's function; the caller owns the transport.
using GlooConnect = Transport* (*)(Store& store, int rank, int size, const GlooOptions& options);
/// Of the functions of libgloo that the module calls: rendezvous::Context(int, int, int), tcp::CreateDevice(attr) and
/// Context::createUnboundBuffer(void*, size_t).
constexpr const char* kGlooImports[] = {"_ZN4gloo10rendezvous7ContextC1Eiii",
                                        "_ZN4gloo9transport3tcp12CreateDeviceERKNS1_4attrE",
                                        "_ZN4gloo7Context19createUnboundBufferEPvm"};

/// Loaded once and never unloaded: its threads' code must not go away.
const LoadedModule& gloo_module() {
  static const LoadedModule module = load_module({.title = "the Gloo module",
                                                  .file = "libduet_gloo.so",
                                                  .build_folder = "ddp/gloo",
                                                  .symbol = "duet_gloo_connect",
                                                  .imports = kGlooImports,
                                                  .library = "libgloo"});
  return module;
}

}  // namespace

std::string why_no_gloo() { return gloo_module().error; }

std::unique_ptr<Transport> make_gloo_transport(Store& store, int rank, int size, const GlooOptions& options) {
  require<DeviceError>(gloo_module().symbol != nullptr, "backend gloo cannot be used: ", gloo_module().error);
  const PortRange ports = port_range();
  require<UsageError>(!ports.limits(), "backend gloo takes a port of its own for each pair of ranks, not ",
                      describe(ports), "; expected backend tcp");
  const auto connect = reinterpret_cast<GlooConnect>(gloo_module().symbol);
  return std::unique_ptr<Transport>(connect(store, rank, size, options));
}

}  // namespace duet::ddp
