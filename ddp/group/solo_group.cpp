#include "ddp/group/solo_group.h"

namespace duet::ddp {

Work SoloGroup::start(const Call& call) {
  if (call.out.count > 0 && call.in.data != call.out.data && call.in.count > 0)
    copy(borrow(call.in.data, {call.in.count}, call.in.dtype, call.in.device),
         borrow(call.out.data, {call.out.count}, call.out.dtype, call.out.device));
  return {};
}

}  // namespace duet::ddp
