// Plausible programs of users, wrong ones and right ones, each run alone, under DataParallel and under
// DistributedDataParallel: an error that names the mistake, or the right result, and never wrong numbers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ddp/distributed_data_parallel.h"
#include "ddp/group/process_group.h"
#include "lib/data/loader.h"
#include "lib/nn/chain.h"
#include "lib/nn/layers.h"
#include "lib/nn/module.h"
#include "samplers/batch.h"
#include "tests/ddp/train.h"

namespace duet_test {

using namespace duet;

enum class Mode { alone, dp, ddp };

/// One process, or one of two ranks, of a program.
class Run {
 public:
  Run(Mode mode, ddp::ProcessGroup* group) : mode_(mode), group_(group) {}
  Mode mode() const { return mode_; }
  int rank() const;
  int size() const;
  /// Null unless the mode is DDP.
  ddp::ProcessGroup* group() const { return group_; }
  /// The model in the wrapper of the mode, on two devices or as one of two ranks; the model itself alone.
  nn::Module& wrap(nn::Module& model);

 private:
  Mode mode_;
  ddp::ProcessGroup* group_;
  std::unique_ptr<nn::Module> wrapper_;
};

using Values = std::vector<float>;
/// Trains and returns what is compared: parameters, gradients, masks.
using Program = std::function<Values(Run& run)>;

/// What a row of the table expects.
struct Expected {
  std::string error{};        // a part of the error's text on every rank; empty: no error
  Program same_as = nullptr;  // the result has the bits of this program's, run alone; null: of its own, run alone
  bool exact = true;          // false: equal to rounding
};

struct Row {
  const char* what;
  std::vector<Mode> modes;
  Program program;
  Expected expected;
};

inline const std::vector<Mode> kAll = {Mode::alone, Mode::dp, Mode::ddp};
inline const std::vector<Mode> kDdp = {Mode::ddp};

/// Runs a row in all of its modes and checks what it expects.
void check(const Row& row);

/// (N, 1, 28, 28) -> log-probabilities (N, 10): two parts, a body and a head.
struct BodyAndHead : nn::Module {
  explicit BodyAndHead(std::uint64_t seed = kSeed) {
    register_module("body", body);
    register_module("dropout", dropout);
    register_module("head", head);
    initialise(seed);
  }
  Variable forward(nn::Context& context, const Variable& x) const override {
    return nn::chain(context, x, {flatten, body, relu, dropout, head, log_softmax});
  }
  using Module::forward;

  nn::Flatten flatten;
  nn::Linear body{784, 16};
  nn::ReLU relu;
  nn::Dropout dropout{0.5};
  nn::Linear head{16, 10};
  nn::LogSoftmax log_softmax;
};

Values values_of(nn::Module& model);
Values gradients_of(nn::Module& model);

/// Of 40 drawn samples, of which each depends on its number alone, in batches of 8.
data::Loader loader_of(int world_size, int rank);

/// The loop of the README over one epoch.
Values train(Run& run, nn::Module& model, data::Loader& loader);

}  // namespace duet_test
