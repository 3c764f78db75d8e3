// Sums over the ranks of a group, for layers whose statistics are those of all ranks' rows.
#pragma once

#include <span>

#include "ddp/group/process_group.h"
#include "lib/backend/backend.h"

namespace duet::ddp {

class GroupSums final : public BatchSums {
 public:
  explicit GroupSums(ProcessGroup& group) : group_(group) {}
  void sum(std::span<double> values) override {
    used_ = true;
    group_.all_reduce(values).wait();
  }
  bool weighted_by_rows() const override { return weighted_; }
  /// Whether gradients are those of means over each rank's own rows.
  void set_weighted(bool weighted) { weighted_ = weighted; }
  /// Whether a layer has summed.
  bool used() const { return used_; }

 private:
  ProcessGroup& group_;
  bool weighted_ = false, used_ = false;
};

}  // namespace duet::ddp
