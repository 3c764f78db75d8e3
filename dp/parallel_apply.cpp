#include "dp/parallel_apply.h"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <memory>
#include <span>
#include <utility>

#include "lib/autograd/grad_mode.h"
#include "lib/autograd/node.h"
#include "lib/backend/backend.h"
#include "lib/base/fault_point.h"
#include "lib/base/lasting.h"
#include "lib/base/trace.h"
#include "lib/error.h"
#include "lib/monotonic.h"
#include "lib/tensor.h"

namespace duet::dp {
namespace {

/// Runs task(i) for the first `count` replicas, each on its device's thread. `others`: see ReplicaSums::begin.
template <class Task>
void run_side_by_side(Replicas& replicas, const char* name, int count, const SumOrder& order, BatchSums* others,
                      Task&& task) {
  replicas.begin_sums(count, order, others);
  try {
    replicas.run(
        [&](int i) {
          if (i >= count) return;
          try {
            with_prefix(
                [&] { return concat("replica ", replicas.device_number(i), " on device ", replicas.device(i), ": "); },
                [&] {
                  replicas.require_bound(i);
                  task(i);
                });
            replicas.end_sums(i);
          } catch (const OtherReplicaFailed&) {
            throw;
          } catch (...) {
            replicas.end_sums(i, std::current_exception());
            throw;
          }
        },
        name);
  } catch (const OtherReplicaFailed& stopped) {
    std::rethrow_exception(stopped.cause);
  }
}

/// The name of what a replica does that has its device for itself; null where it is not traced.
const char* traced_name(const Replicas& replicas, const char* name, int i) {
  return replicas.places().traced && !replicas.takes_turns(i) ? name : nullptr;
}

/// Whether backward sums the divisor of a loss in this value over all ranks.
bool divides(const Edge& edge) {
  return edge.node != nullptr && (edge.kinds() & kBatchMean) != 0 &&
         (edge.node->divisor() != nullptr || std::ranges::any_of(edge.node->edges(), divides));
}

/// One node over the tapes of all replicas. Its outputs are the replicas' outputs, replica by replica; its edges are
/// the inputs that require gradients, then the module's slots in the model's context.
struct ParallelApplyNode final : Node {
  using Node::Node;
  const char* name() const override { return "parallel_apply"; }

  void backward(const Gradients& g) override {
    run_replicas(g);
    for (std::size_t i = 0; i < inputs.size(); ++i) g.inputs[i] = inputs[i].grad();
    TimedParts::end_part(replicas->devices());
    const TraceSpan span(replicas->places().traced ? "communication" : nullptr, replicas->devices()[0]);
    deliver_parameters(g);
    TimedParts::end_part(replicas->devices());
  }

  std::span<const float> block_sums(int output) const override {
    for (const PooledVector<Variable>& of_replica : outputs_of) {
      const int count = static_cast<int>(of_replica.size());
      if (output < count) {
        const Edge& edge = of_replica[static_cast<std::size_t>(output)].edge();
        return edge.node != nullptr ? edge.node->block_sums(edge.output) : std::span<const float>();
      }
      output -= count;
    }
    return {};
  }

  unsigned kinds_of(int output) const override { return kinds[static_cast<std::size_t>(output)]; }

  bool hides_divisor() const override {
    const auto has_divisor = [](const Variable& y) { return y.requires_grad() && divides(y.edge()); };
    return !outputs_of.empty() && std::ranges::any_of(outputs_of[0], has_divisor);  // all replicas have one
  }

  void release() override {
    outputs_of.clear();
    inputs.clear();
  }

  void run_replicas(const Gradients& g) {
    PooledVector<std::size_t> first(outputs_of.size());
    for (std::size_t i = 1; i < first.size(); ++i) first[i] = first[i - 1] + outputs_of[i - 1].size();
    took_part.assign(static_cast<std::size_t>(replicas->size()), 0);
    run_side_by_side(*replicas, "backward", static_cast<int>(outputs_of.size()), *order, others, [&](int i) {
      const auto at = static_cast<std::size_t>(i);
      replicas->context(i).store->zero_grad();
      PooledVector<BackwardRoot> roots;
      for (std::size_t k = 0; k < outputs_of[at].size(); ++k) {
        const Tensor& gradient = g.outputs[first[at] + k];
        if (gradient.defined() && outputs_of[at][k].requires_grad())
          roots.push_back({outputs_of[at][k].edge(), gradient});
      }
      if (roots.empty()) return;
      const TraceSpan span(traced_name(*replicas, "backward", i), replicas->device(i));
      const ScopedValue<bool> runs(replicas->context(i).store->runs(), true);
      run_backward(roots);
      took_part[at] = 1;
    });
  }

  void deliver_parameters(const Gradients& g) {
    const int slots = static_cast<int>(g.edges.size() - inputs.size());  // the module may be gone
    PooledVector<char> filled(static_cast<std::size_t>(slots));
    for (int s = 0; s < slots; ++s)
      for (int i = 0; i < replicas->size(); ++i)
        filled[static_cast<std::size_t>(s)] |=
            static_cast<char>(took_part[static_cast<std::size_t>(i)] && replicas->context(i).store->has_gradient(s));
    fill_gaps(filled);
    const nn::FlatParameters& store = *replicas->context(0).store;
    const nn::Slot* shared = nullptr;
    for (int i = 0; i < replicas->size() && shared == nullptr; ++i) shared = replicas->context(i).store->shared_slot();
    const Tensor destination = whole_place(g, store, filled);
    PooledVector<Tensor> sums = further_parts(destination.defined(), filled);
    const auto room = [&] { return empty(store.gradients().shape(), DType::f32, store.device()); };
    sums.insert(sums.begin(), destination.defined() ? destination : room());
    for (Tensor& sum : sums)
      if (!sum.defined()) sum = room();
    replicas->sum_gradients(*order, took_part, sums, destination.defined());
    for (std::size_t i = 1; i < sums.size(); ++i) add_part(i - 1, sums[i], filled);
    if (order->several())
      for (std::size_t s = 0; s < filled.size(); ++s) parts->filled[first_slot + s] |= filled[s];
    const Tensor& sum = sums[0];
    for (int s = 0; s < slots; ++s) {
      const std::size_t edge = inputs.size() + static_cast<std::size_t>(s);
      const nn::Slot& slot = store.slots()[static_cast<std::size_t>(s)];
      if (shared != nullptr && shared->offset == slot.offset) static_cast<Leaf&>(*g.edges[edge].node).adds_up();
      g.inputs[edge] = filled[static_cast<std::size_t>(s)] ? sum.slice(slot.offset, slot.shape) : Tensor();
    }
    if (shared != nullptr && replicas->places().traced && replicas->devices().size() > 1) model->report_uses(shared);
  }

  /// A slot that one replica used and another did not is zero in the other.
  void fill_gaps(const PooledVector<char>& filled) {
    for (int i = 0; i < replicas->size(); ++i) {
      nn::FlatParameters& store = *replicas->context(i).store;
      if (!took_part[static_cast<std::size_t>(i)]) continue;
      for (int s = 0; s < store.slot_count(); ++s)
        if (!store.has_gradient(s) && filled[static_cast<std::size_t>(s)]) {
          const Tensor gap = store.gradient(s);
          backend(gap).fill(gap, 0.0f);
        }
    }
  }

  /// The model's own flat gradient, if all slots are wanted there: then the sum is written where it belongs.
  Tensor whole_place(const Gradients& g, const nn::FlatParameters& store, const PooledVector<char>& filled) const {
    for (std::size_t s = 0; s < filled.size(); ++s)
      if (!filled[s] || !g.inputs[inputs.size() + s].defined()) return {};
    for (std::size_t s = 0; s < filled.size(); ++s)
      if (!g.inputs[inputs.size() + s].same_memory(model_gradients.slice(store.slots()[s].offset, {0}))) return {};
    return model_gradients;
  }

  /// The module's run of a further part of the model's gradients.
  Tensor run_of(const Tensor& part) const {
    const auto* const begin = static_cast<const float*>(parts->first.raw());
    return part.slice(static_cast<const float*>(model_gradients.raw()) - begin, model_gradients.shape());
  }

  /// Where the sums of further subtrees are wanted: in the model's parts where nothing is there, else undefined.
  PooledVector<Tensor> further_parts(bool whole, const PooledVector<char>& filled) const {
    PooledVector<Tensor> places(order->results.size() - 1);
    if (places.empty()) return places;
    const auto begin = parts->filled.begin() + static_cast<std::ptrdiff_t>(first_slot);
    const bool empty = std::none_of(begin, begin + std::ssize(filled), [](char one) { return one != 0; });
    for (std::size_t i = 0; whole && empty && i < places.size(); ++i) places[i] = run_of(parts->others[i]);
    return places;
  }

  /// Adds the sum of a further subtree, which may be there already, to the model's gradients of that.
  void add_part(std::size_t number, const Tensor& sum, const PooledVector<char>& filled) const {
    const Tensor part = run_of(parts->others[number]);
    const nn::FlatParameters& store = *replicas->context(0).store;
    for (std::size_t s = 0; s < filled.size() && !sum.same_memory(part); ++s) {
      if (!filled[s]) continue;
      const Tensor own = store.slot_in(sum, static_cast<int>(s)), all = store.slot_in(part, static_cast<int>(s));
      parts->filled[first_slot + s] ? backend(own).add(all, own, all) : copy(own, all);
    }
  }

  std::shared_ptr<Replicas> replicas;
  nn::FlatParameters* model = nullptr;              // which outlives every backward that reaches its slots
  const SumOrder* order = nullptr;                  // of the forward
  std::shared_ptr<nn::GradientParts> parts;         // of the model; null: it has one
  std::size_t first_slot = 0;                       // of the module, in the model
  BatchSums* others = nullptr;                      // the outer wrapper's sums over processes, in this tape's forward
  Tensor model_gradients;                           // the module's run of the model's flat gradient
  PooledVector<PooledVector<Variable>> outputs_of;  // by replica, each on its own tape
  PooledVector<unsigned> kinds;                     // by output
  PooledVector<Variable> inputs;                    // leaves of the replicas' tapes
  PooledVector<char> took_part;
};

}  // namespace

PooledVector<nn::Value> parallel_apply(const std::shared_ptr<Replicas>& replicas, nn::Context& model,
                                       std::span<const nn::Value> inputs, Normaliser of_all_parts) {
  const bool record = grad_enabled();
  PooledVector<Edge> input_edges;
  PooledVector<Variable> leaves;
  PooledVector<nn::Value> own_inputs;
  bool of_mean = false;  // an input is computed from a mean, of which replicas see only the value
  for (const nn::Value& input : inputs) {
    own_inputs.push_back(map_tensors(input, [&](const Variable& x) {
      of_mean = of_mean || x.of_batch_mean();
      if (!record || !x.requires_grad()) return Variable(x.value());
      input_edges.push_back(x.edge());
      leaves.emplace_back(x.value(), true);
      return leaves.back();
    }));
  }
  PooledVector<nn::Value> outputs(inputs.size());
  const SumOrder& order = replicas->order();
  run_side_by_side(*replicas, "forward", static_cast<int>(inputs.size()), order, model.batch_sums, [&](int i) {
    const auto at = static_cast<std::size_t>(i);
    const NoGrad guard(!record);
    const TraceSpan span(traced_name(*replicas, "forward", i), replicas->device(i));
    fault_point("replica", replicas->device_number(i));
    outputs[at] = replicas->forward(i, own_inputs[at]);
  });
  if (!record) return outputs;

  PooledVector<PooledVector<Variable>> outputs_of(inputs.size());
  PooledVector<unsigned> kinds;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    for_each_tensor(outputs[i], [&](const Variable& y) {
      outputs_of[i].push_back(y);
      // The tape doesn't know how the replicas' rows are used later.
      const unsigned of_y = y.requires_grad() && y.value().count() != 1 ? y.edge().kinds() : 0;
      if ((of_y & (kBatchMean | kShifted)) != 0)
        y.edge().node->set_kinds(of_y | ((of_y & kShifted) != 0 ? kCut : kCurved));
      unsigned kind = y.requires_grad() ? y.edge().normalisers() : unsigned{kOwnRows};
      if (y.requires_grad()) kind |= y.edge().kinds() & (kOfMeans | kDivided);
      kind |= (!y.requires_grad() && y.of_batch_mean() ? kShifted : 0u) | (of_mean ? kCut : 0u);
      kinds.push_back((kind & kPartOfBatch) != 0 ? (kind & ~unsigned{kPartOfBatch}) | of_all_parts : kind);
    });
  }
  auto node = make_pooled<ParallelApplyNode>(static_cast<int>(kinds.size()));
  for (const Edge& edge : input_edges) node->add_edge(edge);
  const nn::Module::Range& range = replicas->module().range();
  for (int s = 0; s < range.slots; ++s) node->add_edge(model.parameter(range.first_slot + s).edge());
  node->kinds = std::move(kinds);
  node->replicas = replicas;
  node->model = model.store;
  node->others = model.batch_sums;
  node->first_slot = static_cast<std::size_t>(range.first_slot - model.first_slot);
  node->model_gradients = model.store->gradients_of(range.first_slot - model.first_slot, range.slots);
  node->order = &order;
  node->parts = model.gradient_parts;
  node->outputs_of = std::move(outputs_of);
  node->inputs = std::move(leaves);
  int next = 0;
  for (nn::Value& output : outputs)
    output = map_tensors(output, [&](const Variable& y) { return Variable(y.value(), node, next++); });
  return outputs;
}

}  // namespace duet::dp
