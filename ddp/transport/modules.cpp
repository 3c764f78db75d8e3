#include "ddp/transport/modules.h"

#include <cstdlib>
#include <mutex>
#include <utility>

#include "ddp/store/network.h"
#include "lib/base/module_loader.h"
#include "lib/error.h"

namespace duet::ddp {
namespace {

/// What the modules of transports export; the caller owns the transport.
using TransportConnect = Transport* (*)(Store& store, int rank, int size, const ConnectOptions& options);
/// What that of NCCL exports; the caller owns the group.
using NcclConnect = ProcessGroup* (*)(std::shared_ptr<Store> store, int rank, int size, const ConnectOptions& options);

/// `ports` are those that the backend takes, which no range limits.
std::unique_ptr<Transport> connect_by(const LoadedModule& module, const char* backend, const char* ports, Store& store,
                                      int rank, int size, const ConnectOptions& options) {
  require<DeviceError>(module.symbol != nullptr, "backend ", backend, " cannot be used: ", module.error);
  const PortRange range = port_range();
  require<UsageError>(!range.limits(), "backend ", backend, " takes ", ports, ", not ", describe(range),
                      "; expected backend tcp");
  return std::unique_ptr<Transport>(reinterpret_cast<TransportConnect>(module.symbol)(store, rank, size, options));
}

/// Some of the functions of libgloo that the module calls: rendezvous::Context(int, int, int),
/// tcp::CreateDevice(attr) and Context::createUnboundBuffer(void*, size_t).
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

constexpr const char* kMpiImports[] = {"MPI_Init_thread", "MPI_Isend", "MPI_Irecv"};

/// Loaded once and never unloaded: MPI calls its code as the process ends.
const LoadedModule& mpi_module() {
  static const LoadedModule module = load_module({.title = "the MPI module",
                                                  .file = "libduet_mpi.so",
                                                  .build_folder = "ddp/mpi",
                                                  .symbol = "duet_mpi_connect",
                                                  .imports = kMpiImports,
                                                  .library = "libmpi.so"});
  return module;
}

constexpr const char* kNcclPath = "DUET_NCCL_MODULE";

LoadedModule load_nccl() {
  // A stream of one CUDA runtime is invalid in another runtime's NCCL.
  if (std::getenv("DUET_CUDA_MODULE") != nullptr && std::getenv(kNcclPath) == nullptr)
    return {nullptr, concat("DUET_CUDA_MODULE names another CUDA module, but ", kNcclPath, " no NCCL module for it")};
  return load_module({.title = "the NCCL module",
                      .file = "libduet_nccl.so",
                      .build_folder = "ddp/nccl",
                      .symbol = "duet_nccl_connect",
                      .path_variable = kNcclPath});
}

/// Loaded once and never unloaded: its threads' code must not go away.
const LoadedModule& nccl_module() {
  static const LoadedModule module = load_nccl();
  return module;
}

/// Before NCCL's first call, which reads them. Leaves alone what is set.
void set_environment(const std::string& interface) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  // "=" matches the exact name, not a prefix.
  if (!interface.empty()) ::setenv("NCCL_SOCKET_IFNAME", ("=" + interface).c_str(), 0);
  // A registered buffer may get another algorithm, which adds up in another order: recorded steps would not have the
  // bits of plain ones.
  ::setenv("NCCL_GRAPH_REGISTER", "0", 0);
}

}  // namespace

std::string why_no_gloo() { return gloo_module().error; }

std::unique_ptr<Transport> make_gloo_transport(Store& store, int rank, int size, const ConnectOptions& options) {
  return connect_by(gloo_module(), "gloo", "a port of its own for each pair of ranks", store, rank, size, options);
}

std::string why_no_mpi() { return mpi_module().error; }

std::unique_ptr<Transport> make_mpi_transport(Store& store, int rank, int size, const ConnectOptions& options) {
  return connect_by(mpi_module(), "mpi", "the ports of MPI's own settings", store, rank, size, options);
}

std::string why_no_nccl() { return nccl_module().error; }

std::unique_ptr<ProcessGroup> make_nccl_group(std::shared_ptr<Store> store, int rank, int size,
                                              const ConnectOptions& options) {
  require<DeviceError>(nccl_module().symbol != nullptr, "backend nccl cannot be used: ", nccl_module().error);
  require<UsageError>(options.device.kind == DeviceKind::cuda, "backend nccl is for CUDA devices, got ",
                      options.device);
  set_environment(options.interface);
  const auto connect = reinterpret_cast<NcclConnect>(nccl_module().symbol);
  return std::unique_ptr<ProcessGroup>(connect(std::move(store), rank, size, options));
}

}  // namespace duet::ddp
