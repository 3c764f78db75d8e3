// Gradients that wait while a backward run sums others over the ranks.
#pragma once

#include <map>

#include "lib/nn/flat_parameters.h"
#include "lib/nn/module.h"
#include "lib/tensor.h"

namespace duet::ddp {

/// Sums over the ranks that are in the gradients already would count once for each rank in the next sum: those of an
/// earlier backward of this step, as a GAN's discriminator has two, and those that zero_grad() of another part has
/// left. So backward begins without them, and they are added at its end, as on one device. Gradients that runs under
/// no_sync() add to them are kept apart until the next sum. Used by the module's thread.
class SumsAside {
 public:
  SumsAside(nn::FlatParameters& store, const nn::Module::Range& range) : store_(store), range_(range) {}

  /// Before a backward run.
  void begin();
  /// After one under no_sync(): adds the sums that it began without.
  void add_to_own();
  /// After one that is synchronised: adds the sum of an earlier one, if there is one, to that of this one; `used`: the
  /// gradient holds the latter. False: there is neither.
  bool add_to(int slot, bool used);
  void clear() { sums_.clear(); }

  /// Before a run that adds what is free of the batch, of which all ranks have the same: what this rank has accumulated
  /// waits for the next sum.
  void begin_free();
  /// After it: it counts as a sum over the ranks.
  void end_free();

 private:
  struct Aside {
    Tensor sum;    // over the ranks
    Tensor own{};  // what this rank has added to it under no_sync(); undefined: nothing, or it is in the gradient
  };
  int end_slot() const { return range_.first_slot + range_.slots; }
  /// Null: none, or zero_grad() has emptied the slot since.
  Aside* at(int slot);

  nn::FlatParameters& store_;
  const nn::Module::Range range_;
  std::map<int, Aside> sums_;  // by slot
};

}  // namespace duet::ddp
