// MPI as this process has it.
#pragma once

#include <mpi.h>

namespace duet::ddp {

/// Throws CommError with MPI's own text unless the call has succeeded.
void check_mpi(int code, const char* call);

struct MpiWorld {
  MPI_Comm ranks = MPI_COMM_NULL;  // of MPI_COMM_WORLD, for duet's messages alone; errors are returned
  int rank = 0, size = 1;
  bool own = false;  // duet has initialised MPI
};

/// Throws UsageError unless an MPI launcher has started this process: else it would be the only one of a world of its
/// own.
void require_mpi_launcher();
/// Throws UsageError where the launcher's variables have other numbers.
void require_mpi_place(int rank, int size);

/// The first call initialises MPI unless that is done, and waits for all ranks.
const MpiWorld& mpi_world();

}  // namespace duet::ddp
