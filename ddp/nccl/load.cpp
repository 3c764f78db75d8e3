#include "ddp/nccl/load.h"

#include <cstdlib>
#include <mutex>
#include <utility>

#include "lib/base/module_loader.h"
#include "lib/error.h"

namespace duet::ddp {
namespace {

constexpr const char* kPath = "DUET_NCCL_MODULE";

LoadedModule load() {
  // A stream of one CUDA runtime is invalid in another runtime's NCCL.
  if (std::getenv("DUET_CUDA_MODULE") != nullptr && std::getenv(kPath) == nullptr)
    return {nullptr, concat("DUET_CUDA_MODULE names another CUDA module, but ", kPath, " no NCCL module for it")};
  return load_module({.title = "the NCCL module",
                      .file = "libduet_nccl.so",
                      .build_folder = "ddp/nccl",
                      .symbol = kNcclConnectName,
                      .path_variable = kPath});
}

/// Loaded once and never unloaded: its threads' code must not go away.
const LoadedModule& nccl_module() {
  static const LoadedModule module = load();
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

std::string why_no_nccl() { return nccl_module().error; }

std::unique_ptr<ProcessGroup> make_nccl_group(std::shared_ptr<Store> store, int rank, int size,
                                              const NcclOptions& options) {
  require<DeviceError>(nccl_module().symbol != nullptr, "backend nccl cannot be used: ", nccl_module().error);
  require<UsageError>(options.device.kind == DeviceKind::cuda, "backend nccl is for CUDA devices, got ",
                      options.device);
  set_environment(options.interface);
  const auto connect = reinterpret_cast<NcclConnect>(nccl_module().symbol);
  return std::unique_ptr<ProcessGroup>(connect(std::move(store), rank, size, options));
}

}  // namespace duet::ddp
