// What a recorded step holds of a communicator.
#pragma once

#include <cstdint>

#include "lib/backend/step_graph.h"
#include "lib/base/function_ref.h"

namespace duet::ddp::nccl {

class Communicator;

/// Notifies the communicator of replays.
class Recorded final : public RecordedWork {
 public:
  Recorded(Communicator& owner, int number) : communicator(owner), recording(number) {}
  void replay(FunctionRef<void()> launch) override;

  Communicator& communicator;
  const int recording;
  std::uint64_t collectives = 0;
};

}  // namespace duet::ddp::nccl
