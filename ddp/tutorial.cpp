#include "ddp/tutorial.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "lib/base/recovery.h"
#include "lib/error.h"

namespace duet::ddp {

void average_gradients(nn::Module& model, ProcessGroup& group) {
  nn::FlatParameters& store = model.parameters();
  require<UsageError>((store.hooks().normalisers() & (kGlobalRows | kPartOfBatch)) == 0,
                      "average_gradients divides by the number of ranks, but the loss was divided by the rows of the "
                      "global batch already: use batches without the loader's stamp, or DistributedDataParallel");
  require<UsageError>(
      !Recovery::instance().ranks_change(),
      "average_gradients divides by the number of ranks, but the elastic job may continue with fewer of "
      "them: use DistributedDataParallel, or no minimum of ranks");
  const auto size = static_cast<float>(group.size());
  const int first = model.range().first_slot, end = first + model.range().slots;
  for (int slot = first; slot < end; ++slot) {
    if (!store.has_gradient(slot)) continue;
    const Tensor gradient = store.gradient(slot);
    group.all_reduce(gradient).wait();
    const Tensor host = gradient.to(Device{});
    for (float& value : host.span<float>()) value /= size;
    if (!host.same_memory(gradient)) copy(host, gradient);
  }
}

namespace {

using Floats = std::vector<float>;

void add(std::span<float> into, std::span<const float> values) {
  for (std::size_t i = 0; i < into.size(); ++i) into[i] += values[i];
}

/// Chunk `k` (modulo the ranks) of `values`.
std::span<float> chunk_of(std::span<float> values, int k, int size) {
  const auto parts = static_cast<std::size_t>(size);
  const std::size_t i = static_cast<std::size_t>((k % size + size) % size);
  const std::size_t begin = i * values.size() / parts;
  return values.subspan(begin, (i + 1) * values.size() / parts - begin);
}

}  // namespace

void naive_ring_all_reduce(ProcessGroup& group, std::span<const float> sent, std::span<float> received) {
  require<ShapeError>(sent.size() == received.size(), "ring all-reduce of ", sent.size(), " values into ",
                      received.size());
  const int left = (group.rank() - 1 + group.size()) % group.size();
  const int right = (group.rank() + 1) % group.size();
  Floats send_buffer(sent.begin(), sent.end());
  Floats receive_buffer(sent.size());
  Floats sum(sent.begin(), sent.end());
  for (int i = 0; i < group.size() - 1; ++i) {
    Work sending = group.send(std::span<float>(send_buffer), right);
    group.recv(std::span<float>(receive_buffer), left).wait();
    add(sum, receive_buffer);
    sending.wait();
    std::swap(send_buffer, receive_buffer);  // what came from the left goes on to the right
  }
  std::copy(sum.begin(), sum.end(), received.begin());
}

void chunked_ring_all_reduce(ProcessGroup& group, std::span<float> values) {
  const int size = group.size();
  const int rank = group.rank();
  const int left = (rank - 1 + size) % size;
  const int right = (rank + 1) % size;
  Floats arrived;
  for (int step = 0; step < size - 1; ++step) {  // reduce: afterwards chunk rank + 1 is complete here
    const std::span<float> chunk = chunk_of(values, rank - step - 1, size);
    Work sending = group.send(chunk_of(values, rank - step, size), right);
    arrived.resize(chunk.size());
    group.recv(std::span<float>(arrived), left).wait();
    // What arrived is the sum of the ranks before this one; addition commutes, so the order is that of the ring.
    add(chunk, arrived);
    sending.wait();
  }
  for (int step = 0; step < size - 1; ++step) {  // copy the complete chunks round
    Work sending = group.send(chunk_of(values, rank - step + 1, size), right);
    group.recv(chunk_of(values, rank - step, size), left).wait();
    sending.wait();
  }
}

void recursive_doubling_all_reduce(ProcessGroup& group, std::span<float> values) {
  const int rank = group.rank();
  const int pairs = static_cast<int>(std::bit_floor(static_cast<unsigned>(group.size())));
  const int helper = rank - pairs, helped = rank + pairs;
  if (helper >= 0) {
    group.send(values, helper).wait();
    return group.recv(values, helper).wait();
  }
  std::vector<float> arrived(values.size());
  const auto add_from = [&](int peer) {
    group.recv(std::span(arrived), peer).wait();
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += arrived[i];
  };
  if (helped < group.size()) add_from(helped);
  std::vector<float> sent;
  for (int bit = 1; bit < pairs; bit *= 2) {
    sent.assign(values.begin(), values.end());
    Work sending = group.send(std::span(sent), rank ^ bit);
    add_from(rank ^ bit);
    sending.wait();
  }
  if (helped < group.size()) group.send(values, helped).wait();
}

}  // namespace duet::ddp
