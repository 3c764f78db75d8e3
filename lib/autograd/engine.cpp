// Runs the tape backwards.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "lib/autograd/check_finite.h"
#include "lib/autograd/grad_mode.h"
#include "lib/autograd/node.h"
#include "lib/backend/backend.h"
#include "lib/base/recovery.h"
#include "lib/error.h"

namespace duet {
namespace {

thread_local bool recording = true;
thread_local std::uint64_t sequence_counter = 0;
std::atomic<std::uint64_t> run_counter{0};
std::atomic<int> finite_checks{0};  // CheckFinites that live

bool runs_later(const std::shared_ptr<Node>& a, const std::shared_ptr<Node>& b) {
  return a->sequence() < b->sequence();
}

}  // namespace

bool grad_enabled() { return recording; }
NoGrad::NoGrad(bool active) : before_(recording) { recording = recording && !active; }
NoGrad::~NoGrad() { recording = before_; }

CheckFinite::CheckFinite(bool active) : active_(active) { finite_checks += active; }
CheckFinite::~CheckFinite() { finite_checks -= active_; }
bool checks_finite() { return finite_checks > 0; }

std::uint64_t Node::next_sequence() { return ++sequence_counter; }

Tensor& Gradients::place(std::size_t i, const Shape& shape, Device device, Layout layout) const {
  if (!inputs[i].defined()) inputs[i] = empty(shape, DType::f32, device, layout);
  return inputs[i];
}

namespace {

/// The edge of a node's argument that has this kind, or null.
const Edge* argument_of(const Edge& edge, unsigned kind) {
  for (const Edge& argument : edge.node->edges())
    if (argument.node != nullptr && (argument.kinds() & kind) != 0) return &argument;
  return nullptr;
}

/// Throws for a value that is kCurved or kCut.
[[noreturn]] void refuse_curved(const Edge& value) {
  const unsigned kind = value.kinds() & kCut ? kCut : kCurved;
  const Edge* at = &value;
  while (const Edge* const next = argument_of(*at, kind)) at = next;
  while (const Edge* const next = kind == kCut ? argument_of(*at, kShifted) : nullptr) at = next;
  const char* const op = at->node->name();
  require<UsageError>(
      kind != kCut, op, ": a constant among its arguments is, or was computed from, a mean over this ",
      "device's rows of the batch, expected one that all devices have: sum its tensor over them, and make a new ",
      "Variable of that (docs/howto/ddp.md)");
  const Edge* mean = at;
  while (const Edge* const next = argument_of(*mean, kBatchMean)) mean = next;
  require<UsageError>(mean != at, op, ": combines samples of the batch with others of this device, expected single ",
                      "ones, as other devices have others: compute it from DataParallel's output, or of batches ",
                      "without a stamp by GradientRule::torch (docs/howto/ddp.md)");
  throw UsageError(concat(op, ": its argument is the result of ", mean->node->name(),
                          " over this device's rows of the batch, expected a value of single rows, as the gradients of "
                          "several devices would not add up to that of the whole batch: apply ",
                          op, " before ", mean->node->name(), ", or start backward there, with the slope at the mean ",
                          "of all devices' rows as its gradient (docs/howto/ddp.md); of batches without a stamp, "
                          "GradientRule::torch takes the mean of all ranks' gradients as PyTorch does"));
}

}  // namespace

/// One backward run.
class Engine {
 public:
  void run(std::span<const BackwardRoot> roots) {
    for (const BackwardRoot& root : roots) discover(root.edge.node);
    for (const BackwardRoot& root : roots) require_sum(root.edge);
    if (listens(&BackwardListener::adds_free_last)) {
      if (std::ranges::all_of(roots, [](const BackwardRoot& root) { return is_free(root.edge.kinds()); }))
        return run_last(roots);
      sets_aside_ = std::ranges::any_of(roots, [](const BackwardRoot& root) {
        return (root.edge.kinds() & kFree) != 0 && (root.edge.kinds() & kShares) != 0;
      });
    }
    unsigned normalisers = 0;
    for (const BackwardRoot& root : roots)
      normalisers |= sets_aside_ ? root.edge.kinds() & kDivisors : root.edge.normalisers();
    // Those of batches of a rank's own depend on the number of ranks as it is.
    counts_uses_ = (normalisers & kShares) != 0 || !listens(&BackwardListener::adds_free_last);
    require<UsageError>(
        (normalisers & kGlobalRows) == 0 || listeners_.empty() || listens(&BackwardListener::adds_up_ranks),
        "a sampler divided this batch among several ranks, and the loss is a part of that of all their rows, but no "
        "DistributedDataParallel adds up the ranks' gradients: give the sampler a world_size of 1, or its batches a "
        "stamp of their own");
    if (sets_aside_) {  // counts consumers again, without those that are free of the batch
      run_ = ++run_counter;
      listeners_.clear();
      for (const BackwardRoot& root : roots) discover(root.edge.node);
    }
    if (!divisors_.empty() || hides_divisor_) sum_divisors(normalisers);
    pass(roots, normalisers);
    if (!free_.empty()) run_last(free_);
  }

 private:
  bool listens(bool (BackwardListener::*to)() const) const { return std::ranges::any_of(listeners_, to); }

  /// Throws unless the gradients of what several tapes have of this value add up.
  void require_sum(const Edge& value) const {
    const unsigned kinds = value.kinds();
    const bool shares = (kinds & kShares) != 0, joins_rows = listens(&BackwardListener::joins_rows);
    if ((kinds & (kCurved | kCut)) != 0 && (joins_rows || shares)) refuse_curved(value);
    static std::atomic<bool> said{false};
    if ((kinds & (kBatchSum | kDivided)) == kBatchSum && !shares && joins_rows)
      report_dependence(said, [] {
        return std::string(
            "the loss is a sum over this device's rows of the batch, but gradients of several devices' "
            "sums are averaged: divide the sum by the rows, x.size(0), or take a mean");
      });
    require<UsageError>(
        !shares || (value.normalisers() & kOwnRows) == 0 || !joins_rows || listens(&BackwardListener::adds_free_last),
        "the module gives a sum of a term that was divided by the rows of the batch and of one that "
        "was not: each device has both, and their gradients cannot be weighted alike; add them up "
        "outside of the module");
  }

  void sum_divisors(unsigned normalisers) const {
    const auto ranks = std::ranges::find_if(listeners_, &BackwardListener::adds_free_last);
    const bool shared = (normalisers & kShares) == kGlobalRows && ranks != listeners_.end();
    require<UsageError>(
        !hides_divisor_ && (shared || ((normalisers & kShares) == 0 && !listens(&BackwardListener::joins_rows))),
        "the mean of a loss divides by the labels that count in the whole batch, but this device knows "
        "those of its own rows only: compute it from DataParallel's output, or for all rows at once, or "
        "with Reduction::sum; under DistributedDataParallel use batches that a sampler has divided");
    PooledVector<std::int64_t> sums;
    for (const std::int64_t* const one : divisors_) sums.push_back(*one);
    if (shared) (*ranks)->sum_over_ranks(sums);
    for (std::size_t i = 0; i < sums.size(); ++i) *divisors_[i] = sums[i];
  }

  /// A run of nodes that are free of the batch, after that of the others.
  static void run_last(std::span<const BackwardRoot> roots) {
    Engine last;
    last.is_last_ = true;
    for (const BackwardRoot& root : roots) last.discover(root.edge.node);
    last.pass(roots, kFree);
  }

  /// Runs the nodes that were discovered.
  void pass(std::span<const BackwardRoot> roots, unsigned normalisers) {
    for (BackwardListener* const listener : listeners_) listener->backward_begins(normalisers);
    for (const BackwardRoot& root : roots) {
      Node& node = *root.edge.node;
      Tensor& arrived = node.arrived_[static_cast<std::size_t>(root.edge.output)];
      require<UsageError>(!arrived.defined(), "backward from the same output of ", node.name(), " twice");
      arrived = root.gradient;
      if (!root.gradient.defined()) from_one_ = &node;
      if (checks_finite()) require_finite(root.gradient, "the gradient that backward of ", node.name(), " starts with");
      // A root below another root, or the other output of one, starts once.
      const bool queued = std::find(ready_.begin(), ready_.end(), root.edge.node) != ready_.end();
      if (node.waiting_ == 0 && !queued) ready_.push_back(root.edge.node);
    }
    std::make_heap(ready_.begin(), ready_.end(), runs_later);
    while (!ready_.empty()) {
      std::pop_heap(ready_.begin(), ready_.end(), runs_later);
      const std::shared_ptr<Node> node = std::move(ready_.back());
      ready_.pop_back();
      visit(*node);
    }
    for (BackwardListener* const listener : listeners_) listener->backward_ended();
  }

  /// Counts the consumers of every node below `root`.
  void discover(const std::shared_ptr<Node>& root) {
    if (root->run_ == run_) return;
    PooledVector<Node*> stack;
    begin(*root);
    stack.push_back(root.get());
    while (!stack.empty()) {
      Node& node = *stack.back();
      stack.pop_back();
      for (const Edge& edge : node.edges()) {
        if (edge.node == nullptr || leads_aside(node, edge)) continue;
        if (edge.node->run_ != run_) {
          begin(*edge.node);
          stack.push_back(edge.node.get());
        }
        ++edge.node->waiting_;
      }
    }
  }

  void begin(Node& node) {
    node.run_ = run_;
    node.waiting_ = 0;
    node.has_batch_ = false;
    node.arrived_.assign(static_cast<std::size_t>(node.outputs()), Tensor());
    if (!is_last_) node.consumer_ = 0;
    if (!is_last_ && !sets_aside_) {
      node.reached();
      hides_divisor_ = hides_divisor_ || node.hides_divisor();
      std::int64_t* const divisor = node.divisor();
      if (divisor != nullptr && (node.kinds_of(0) & kFree) == 0) divisors_.push_back(divisor);
    }
    BackwardListener* const listener = node.listener();
    if (listener && std::find(listeners_.begin(), listeners_.end(), listener) == listeners_.end())
      listeners_.push_back(listener);
  }

  void visit(Node& node) {
    PooledVector<Tensor> inputs(node.edges().size());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const auto* const leaf = dynamic_cast<const Leaf*>(node.edges()[i].node.get());
      const bool arrives = leaf != nullptr && !leads_aside(node, node.edges()[i]);
      if (arrives && leaf->waiting_ == 1 && !leaf->arrived_[0].defined()) inputs[i] = leaf->place();
    }
    auto* const leaf = dynamic_cast<Leaf*>(&node);
    const bool reached = &node == from_one_ || std::any_of(node.arrived_.begin(), node.arrived_.end(),
                                                           [](const Tensor& t) { return t.defined(); });
    if (reached) {
      require<UsageError>(leaf != nullptr || !node.used_, "backward through ", node.name(),
                          " a second time: a tape is used up by its first backward");
      node.backward({node.arrived_, inputs, node.edges()});
      if (checks_finite()) require_finite_gradients(node, inputs);
    } else {
      inputs.assign(inputs.size(), Tensor());  // no gradient came this way: nothing is handed on
    }
    node.arrived_.clear();
    // The run of terms that are free of the batch may come to such nodes again.
    if (!sets_aside_ || leaf != nullptr || !is_free(node.kinds_of(0))) {
      node.used_ = true;
      node.release();
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) deliver(node, node.edges()[i], std::move(inputs[i]));
  }

  /// Whether a term of the loss is one that is free of the batch.
  bool leads_aside(const Node& node, const Edge& edge) const {
    if (!sets_aside_ || !is_free(edge.kinds())) return false;
    const unsigned kinds = node.kinds_of(0);
    return (kinds & kFree) != 0 && (kinds & kShares) != 0;
  }

  void set_aside(const Edge& edge, Tensor gradient) {
    const auto known = std::ranges::find_if(free_, [&](const BackwardRoot& root) {
      return root.edge.node == edge.node && root.edge.output == edge.output;
    });
    if (known != free_.end()) return add_to(known->gradient, std::move(gradient), *edge.node);
    free_.push_back({edge, std::move(gradient)});
  }

  /// One device adds up the gradients of later operators, then those of the batch, then those of earlier operators. The
  /// leaf has the second.
  static void add_last(Leaf& leaf, Tensor gradient) {
    for (Tensor* const one : {&leaf.arrived_[0], &gradient})
      if (const Tensor next = std::exchange(*one, {}); next.defined()) leaf.backward({{&next, 1}, {}, {}});
  }

  static void add_to(Tensor& sum, Tensor gradient, const Node& target) {
    if (!sum.defined()) {
      sum = std::move(gradient);
      return;
    }
    require<ShapeError>(sum.shape() == gradient.shape() && sum.layout() == gradient.layout(), target.name(),
                        ": gradients of shapes ", sum.shape(), " and ", gradient.shape(), " meet");
    const Tensor total = empty(sum.shape(), DType::f32, sum.device(), sum.layout());
    backend(sum).add(sum, gradient, total);
    sum = total;
  }

  static void require_finite_gradients(const Node& node, const PooledVector<Tensor>& inputs) {
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (const Node* const receiver = node.edges()[i].node.get())
        require_finite(inputs[i], "the gradient that the backward of ", node.name(), " gives ", receiver->name());
  }

  /// The leaf that a node is, or of which it is a view; null: neither.
  static Leaf* leaf_of(Node& node) {
    Node* at = &node;
    while (at->is_view() && at->edges()[0].node != nullptr) at = at->edges()[0].node.get();
    return dynamic_cast<Leaf*>(at);
  }

  /// Two uses by the batch add up on each device; what is free of it is the same on all.
  void count_use(const Node& from, Node& target) const {
    if (is_free(from.kinds_of(0)) && !from.has_batch_) return;
    Leaf* const shared = counts_uses_ && target.has_batch_ ? leaf_of(target) : nullptr;
    if (shared != nullptr) shared->adds_up();
    target.has_batch_ = true;
  }

  void deliver(const Node& from, const Edge& edge, Tensor gradient) {
    if (edge.node == nullptr) return;
    Node& target = *edge.node;
    if (leads_aside(from, edge)) {
      if (gradient.defined()) set_aside(edge, std::move(gradient));
      return;
    }
    if (gradient.defined()) {
      Tensor& sum = target.arrived_[static_cast<std::size_t>(edge.output)];
      count_use(from, target);
      auto* const leaf = sets_aside_ || is_last_ ? dynamic_cast<Leaf*>(&target) : nullptr;
      if (sets_aside_) target.consumer_ = from.sequence();
      if (leaf != nullptr && from.sequence() < target.consumer_) {
        add_last(*leaf, std::move(gradient));
      } else {
        add_to(sum, std::move(gradient), target);
      }
    }
    if (--target.waiting_ > 0) return;
    ready_.push_back(edge.node);
    std::push_heap(ready_.begin(), ready_.end(), runs_later);
  }

  std::uint64_t run_ = ++run_counter;
  bool sets_aside_ = false;  // terms that are free of the batch
  bool is_last_ = false;     // this is the run of such terms
  bool counts_uses_ = true;
  PooledVector<BackwardRoot> free_{};  // what was set aside
  PooledVector<std::int64_t*> divisors_{};
  bool hides_divisor_ = false;
  const Node* from_one_ = nullptr;             // root, whose implicit gradient is 1
  PooledVector<std::shared_ptr<Node>> ready_;  // heap, latest operator first
  PooledVector<BackwardListener*> listeners_;
};

void run_backward(std::span<const BackwardRoot> roots) {
  for (const BackwardRoot& root : roots) {
    require(root.edge.node != nullptr, "backward of a variable that requires no gradient");
    require<UsageError>(root.gradient.defined() || (root.edge.node->starts_from_one() && roots.size() == 1),
                        "backward of ", root.edge.node->name(), " got no gradient to start with");
  }
  Engine().run(roots);
}

}  // namespace duet
