#include "ddp/solo_group.h"

#include <cstring>

namespace duet::ddp {

Work SoloGroup::start(const Call& call) {
  const bool copies =
      call.op == Collective::gather || call.op == Collective::scatter || call.op == Collective::all_gather;
  if (copies && call.in.data != call.out.data && call.in.count > 0)
    std::memcpy(call.out.data, call.in.data, call.in.bytes());
  return {};
}

}  // namespace duet::ddp
