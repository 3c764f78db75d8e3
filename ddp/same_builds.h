// Whether the processes of an elastic job run the same program and libraries.
#pragma once

#include "ddp/store/store.h"

namespace duet::ddp {

/// Compares the ELF files that this process has loaded with those of the job's other processes, by their build IDs, or
/// by a hash of their code and constants if they have none: the program and duet on all hosts, other libraries on each.
/// Throws UsageError that names a file of another build. `process` is the number of this one, `host` that of its host.
void require_same_builds(Store& store, int process, int host);

}  // namespace duet::ddp
