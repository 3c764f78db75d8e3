// The group of a job with one rank: copies and nothing else.
#pragma once

#include <memory>

#include "ddp/group/process_group.h"

namespace duet::ddp {

/// Every call is done when it returns.
class SoloGroup final : public ProcessGroup {
 public:
  SoloGroup() : ProcessGroup(0, 1) {}
  const char* backend() const override { return "solo"; }

 protected:
  Work start(const Call& call) override {
    if (call.out.count > 0 && call.in.data != call.out.data && call.in.count > 0)
      copy(borrow(call.in.data, {call.in.count}, call.in.dtype, call.in.device),
           borrow(call.out.data, {call.out.count}, call.out.dtype, call.out.device));
    return {};
  }
  std::unique_ptr<ProcessGroup> connect_subset(const Subset&) const override { return std::make_unique<SoloGroup>(); }
  bool takes(DeviceKind) const override { return true; }
};

}  // namespace duet::ddp
