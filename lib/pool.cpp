#include "lib/pool.h"

namespace duet {

std::pmr::memory_resource& object_pool() {
  // Never destroyed: objects in static storage may be released after any destructor.
  static auto* const pool = new std::pmr::synchronized_pool_resource();
  return *pool;
}

}  // namespace duet
