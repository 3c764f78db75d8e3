#include "ddp/mpi/load.h"

#include "ddp/store/network.h"
#include "lib/base/module_loader.h"
#include "lib/error.h"

namespace duet::ddp {
namespace {

/// The module's function; the caller owns the transport.
using MpiConnect = Transport* (*)(Store& store, int rank, int size, const MpiOptions& options);
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

}  // namespace

std::string why_no_mpi() { return mpi_module().error; }

std::unique_ptr<Transport> make_mpi_transport(Store& store, int rank, int size, const MpiOptions& options) {
  require<DeviceError>(mpi_module().symbol != nullptr, "backend mpi cannot be used: ", mpi_module().error);
  const PortRange ports = port_range();
  require<UsageError>(!ports.limits(), "backend mpi takes the ports of MPI's own settings, not ", describe(ports),
                      "; expected backend tcp");
  const auto connect = reinterpret_cast<MpiConnect>(mpi_module().symbol);
  return std::unique_ptr<Transport>(connect(store, rank, size, options));
}

}  // namespace duet::ddp
