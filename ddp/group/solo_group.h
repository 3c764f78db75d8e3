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
  Work start(const Call& call) override;
  std::unique_ptr<ProcessGroup> connect_subset(const Subset&) const override { return std::make_unique<SoloGroup>(); }
  bool takes(DeviceKind) const override { return true; }
};

}  // namespace duet::ddp
