// Messages over MPI, which is a module that is loaded when first needed.
#pragma once

#include <memory>
#include <string>

#include "ddp/store/store.h"
#include "ddp/transport/transport.h"

namespace duet::ddp {

struct MpiOptions {
  Milliseconds connect_timeout{30'000};
  bool whole_job = true;  // the ranks are those of MPI_COMM_WORLD, with its numbers
};

/// Connects this rank with the others, which call this with the same store; the first call in a process is one of all
/// ranks of MPI_COMM_WORLD. MPI is initialised unless the program has done so, with MPI_THREAD_MULTIPLE, and then also
/// finalised when the process exits with 0 and no message has failed. Throws UsageError where no MPI launcher has
/// started the process or where MPI counts other ranks, CommError when a rank does not come, DeviceError when the
/// module is not there.
std::unique_ptr<Transport> make_mpi_transport(Store& store, int rank, int size, const MpiOptions& options = {});

/// Empty if the module can be used, else why not.
std::string why_no_mpi();

}  // namespace duet::ddp
