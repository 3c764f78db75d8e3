// One training step of SimpleCNN without tape, modules or loader: the yardstick for what those cost.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>

#include "lib/backend/backend.h"
#include "lib/data/dataset.h"
#include "lib/nn/flat_parameters.h"

namespace duet::benchmarks {

/// Calls the backend as the tape does, in the same order, on memory made once; only fc2 and log_softmax, one call of
/// the tape's, are two. It trains `store`, the values of a SimpleCNN, by SGD; dropout is keyed as the model's.
class BareStep {
 public:
  BareStep(nn::FlatParameters& store, const data::ImageDataset& images, std::int64_t batch, std::uint64_t seed);

  /// Trains on these samples (exactly `batch` of them) and returns the loss.
  float run(std::span<const std::int64_t> samples, std::int64_t step, const SGDRule& rule);

  /// Called after every operator with its name, from the next run on.
  void on_lap(std::function<void(const char*)> lap) { lap_ = std::move(lap); }

  // What the last step left, for counting nonzero gradients: places of the pools' maxima, 255 where no gradient passes,
  // and the hidden layer's outputs, 0 where none does.
  const Tensor& first_places() const { return index1_; }
  const Tensor& second_places() const { return index2_; }
  const Tensor& hidden() const { return hidden_; }

 private:
  void lap(const char* name) const {
    if (lap_) lap_(name);
  }
  int slot(const char* name) const;
  Tensor value(const char* name) const { return store_.value(slot(name)); }
  Tensor gradient(const char* name) const { return store_.gradient(slot(name)); }
  void forward(std::int64_t step);
  void backward();

  nn::FlatParameters& store_;
  const data::ImageDataset& images_;
  std::uint64_t seed_;
  Backend& kernels_;
  ConvPoolRelu first_, second_;
  DropoutKey second_dropout_;
  Tensor x_, labels_, y1_, index1_, y2_, index2_, flat_, hidden_, logits_, log_probs_, loss_;
  Tensor d_logits_, d_hidden_, d_flat_, d_y1_;
  Tensor momentum_;
  std::function<void(const char*)> lap_;
};

}  // namespace duet::benchmarks
