#include "ddp/mpi/world.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <string>

#include "lib/base/environment.h"
#include "lib/error.h"

namespace duet::ddp {
namespace {

constexpr const char* kRankVariables[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};
constexpr const char* kSizeVariables[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"};

/// Those of the variables that are set must have this value.
void require_number(std::span<const char* const> variables, int expected, const char* what) {
  for (const char* const name : variables)
    if (const auto text = environment_variable(name))
      require<UsageError>(*text == std::to_string(expected), "backend mpi: environment variable ", name, " is ", *text,
                          ", expected ", expected, ", ", what, " of duet's job");
}

MpiWorld start_mpi() {
  MpiWorld world;
  int flag = 0, level = MPI_THREAD_SINGLE;
  check_mpi(MPI_Finalized(&flag), "MPI_Finalized");
  require<UsageError>(flag == 0, "backend mpi: this process has finalised MPI, which it can do only once");
  check_mpi(MPI_Initialized(&flag), "MPI_Initialized");
  world.own = flag == 0;
  if (world.own) check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
  check_mpi(MPI_Query_thread(&level), "MPI_Query_thread");
  require<UsageError>(level == MPI_THREAD_MULTIPLE, "backend mpi: MPI was initialised for threads of level ", level,
                      ", expected MPI_THREAD_MULTIPLE, ", MPI_THREAD_MULTIPLE);
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &world.ranks), "MPI_Comm_dup");
  check_mpi(MPI_Comm_set_errhandler(world.ranks, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check_mpi(MPI_Comm_rank(world.ranks, &world.rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(world.ranks, &world.size), "MPI_Comm_size");
  return world;
}

}  // namespace

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING + 1> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw CommError(concat(call, ": ", text.data()));
}

void require_mpi_launcher() {
  const bool told = std::any_of(std::begin(kRankVariables), std::end(kRankVariables),
                                [](const char* name) { return environment_variable(name).has_value(); });
  require<UsageError>(
      told,
      "backend mpi: no MPI launcher has started this process: environment variable PMIX_RANK, PMI_RANK "
      "or OMPI_COMM_WORLD_RANK expected, but not set; start the ranks by mpirun, or by srun --mpi=pmix");
}

void require_mpi_place(int rank, int size) {
  require_number(kRankVariables, rank, "the rank of this process");
  require_number(kSizeVariables, size, "the number of ranks");
}

const MpiWorld& mpi_world() {
  static const MpiWorld world = start_mpi();
  return world;
}

}  // namespace duet::ddp
