// Some ranks of a group that become a group of their own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ddp/store/store.h"

namespace duet::ddp {

struct Subset {
  std::string name;              // new in the whole group
  std::shared_ptr<Store> store;  // the subset's own
  std::vector<int> ranks;        // their numbers in the whole group, in the subset's order
  int rank = 0;                  // this rank's place among them
  int size() const { return static_cast<int>(ranks.size()); }
};

}  // namespace duet::ddp
