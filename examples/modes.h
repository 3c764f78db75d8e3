// One training in three modes: alone, under DataParallel and under DistributedDataParallel.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>

#include <duet/ddp/distributed_data_parallel.h>
#include <duet/ddp/init.h>
#include <duet/ddp/launch/launch.h>
#include <duet/dp/data_parallel.h>
#include <duet/lib/autograd/variable.h>
#include <duet/lib/base/sha256.h>
#include <duet/lib/data/loader.h>
#include <duet/lib/device.h>
#include <duet/lib/error.h>
#include <duet/lib/nn/module.h>
#include <duet/samplers/batch.h>
#include <duet/samplers/random.h>

#include "program.h"

namespace examples {

/// Asked where they are needed, as an elastic job may give its ranks other numbers. Null: not distributed.
inline int rank_of(const duet::ddp::ProcessGroup* group) { return group != nullptr ? group->rank() : 0; }
inline int ranks_of(const duet::ddp::ProcessGroup* group) { return group != nullptr ? group->size() : 1; }

/// Calls train(model, net, group) with the model that make() returns, and as `net` a wrapper around it, or in mode
/// single itself; group is null outside of mode ddp. The first two arguments are mode and number of devices. Returns
/// the exit status.
template <class Make, class Train>
int run_in_mode(const Arguments& arguments, const Make& make, const Train& train) {
  const std::string mode = arguments.text(0);
  const auto devices = static_cast<int>(arguments.number(1, 2, 64));
  if (mode == "ddp")
    return duet::ddp::spawn(
        [&](int) {
          auto model = make();
          const auto group = duet::ddp::init_process_group();
          duet::ddp::DistributedDataParallel net(model, *group);
          train(model, net, group.get());
        },
        devices);
  auto model = make();
  if (mode == "dp") {
    duet::dp::DataParallel net(model, {.devices = duet::first_devices(duet::DeviceKind::cpu, devices)});
    train(model, net, nullptr);
  } else {
    duet::require<duet::UsageError>(mode.empty() || mode == "single", "got '", mode, "', expected single, dp or ddp");
    train(model, model, nullptr);
  }
  return 0;
}

/// The rows of a rank in global batches, in random order.
inline std::unique_ptr<duet::samplers::BlockedBatches> shuffled(const duet::data::Dataset& set, std::int64_t batch,
                                                                const duet::ddp::ProcessGroup* group = nullptr) {
  return std::make_unique<duet::samplers::BlockedBatches>(
      std::make_unique<duet::samplers::RandomSampler>(set.size(), 1),
      duet::samplers::BlockedOptions{.global_batch = batch, .world_size = ranks_of(group), .rank = rank_of(group)});
}

/// About twenty lines in all: the losses of the rows of this rank.
inline void print_loss(std::int64_t step, std::int64_t steps, const duet::Variable& loss) {
  if (step % std::max<std::int64_t>(steps / 20, 1) == 0)
    std::printf("step %lld: loss %.7f\n", static_cast<long long>(step), static_cast<double>(loss.item()));
}

inline void print_digest(duet::nn::Module& model) {
  const std::span<const float> values = model.parameters().values().span<float>();
  std::printf("parameters: sha256 %s\n", duet::sha256_hex(std::as_bytes(values)).c_str());
}

}  // namespace examples
