// Nodes of the tape: what turns gradients of an operator's outputs into gradients of its inputs; running them
// backwards.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lib/pool.h"
#include "lib/tensor.h"

namespace duet {

class Node;

/// Bits for the divisors of a tape's losses. Gradients of ranks (ddp) and of replicas (dp) are combined
/// accordingly: added up where the divisor was the rows of the whole batch, else weighted by their own rows.
enum Normaliser : unsigned {
  kOwnRows = 1,     // or unknown: a loss of unstamped rows, or one that ignores the stamp
  kWholeBatch = 2,  // the rows of a stamped batch, all of which are on this tape
  kGlobalRows = 4,  // the rows of a stamped batch that a sampler divided among ranks
  kPartOfBatch =
      8,  // the rows of a stamped batch, of which this tape has a part: a micro-batch, or a shard cut by hand
};

/// Classifies a value further, by bits beside those of Normaliser.
enum ValueKind : unsigned {
  kFree = 16,       // of parameters and numbers; beside kOwnRows: perhaps of the batch, too
  kBatchMean = 32,  // computed from a mean or sum over the rows that this tape has of the batch, by linear operators
  kBatchSum = 128,  // besides: not divided by any number of rows, unless it is kDivided
  kDivided = 1024,  // besides: multiplied, perhaps by 1 / rows
  kCurved = 64,     // computed from such numbers of several tapes it is no sum or multiple of that of all rows
  kCut = 256,       // computed with a constant that is such a number, taken off the tape
  kShifted = 512,   // such a constant was added to it, which no gradient of a linear operator shows
};
inline constexpr unsigned kOfMeans = kBatchMean | kBatchSum | kCurved | kCut | kShifted;
inline constexpr unsigned kDivisors = kOwnRows | kWholeBatch | kGlobalRows | kPartOfBatch;
inline constexpr unsigned kShares = kGlobalRows | kPartOfBatch;  // a part of the gradient of all rows
/// Whether a value of these kinds is surely free of the batch.
inline constexpr bool is_free(unsigned kinds) { return (kinds & (kDivisors | kFree)) == kFree; }

/// The Normaliser of a mean over `rows` rows with this stamp whose gradient is divided by the rows of the global batch.
inline Normaliser normaliser_of(const Rows& stamp, std::int64_t rows) {
  if (!stamp.stamped()) return kOwnRows;
  if (stamp.shards > 1) return kGlobalRows;
  return rows < stamp.global ? kPartOfBatch : kWholeBatch;
}

/// Input number `output` of a node's backward, that is, the gradient of the output of that number.
struct Edge {
  std::shared_ptr<Node> node;  // null: no consumer needs this gradient
  int output = 0;
  /// See Node; the node is not null.
  unsigned kinds() const;
  unsigned normalisers() const;
};

/// Gradients on their way through one node.
struct Gradients {
  /// One per output of the node; undefined where no gradient arrived (it is zero).
  std::span<const Tensor> outputs;
  /// One per edge of the node, to be set where wanted(i). Where one is already defined, it is the place where the
  /// gradient is wanted: writing into it saves a copy.
  std::span<Tensor> inputs;
  std::span<const Edge> edges;

  bool wanted(std::size_t i) const { return edges[i].node != nullptr; }
  /// The place for gradient i: the one that was provided, or fresh memory.
  Tensor& place(std::size_t i, const Shape& shape, Device device, Layout layout = Layout::plain) const;
};

/// Anything with a gradient. Operators make one per call; dp makes one for all replicas.
class Node {
 public:
  explicit Node(int outputs = 1) : outputs_(outputs) {}
  virtual ~Node() = default;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  virtual const char* name() const = 0;
  /// Whether backward() takes an undefined gradient of its one output as 1. A loss may have computed its input's
  /// gradient with its value: a backward that starts here then makes no tensor of 1.
  virtual bool starts_from_one() const { return false; }
  /// Whether its result has the elements of its one input, or some of them, in another order.
  virtual bool is_view() const { return false; }
  /// Called once per backward run, when all gradients of the outputs are complete.
  virtual void backward(const Gradients& gradients) = 0;
  /// Of a loss whose gradient is divided by a number that backward sums over all ranks' parts of the batch; else null.
  virtual std::int64_t* divisor() { return nullptr; }
  /// Whether a loss on another tape, which this runs backward, has such a divisor.
  virtual bool hides_divisor() const { return false; }
  /// Of a loss: see ops::block_sums(). Valid until release().
  virtual std::span<const float> block_sums(int /*output*/) const { return {}; }
  /// Frees what backward needed; called after it.
  virtual void release() {}

  int outputs() const { return outputs_; }
  const PooledVector<Edge>& edges() const { return edges_; }
  /// Adds an input. Unless outputs are `linear` in it, backward refuses those of a mean over one of several devices.
  void add_edge(const Edge& edge, bool linear = false) {
    const unsigned kinds = edge.node != nullptr ? edge.kinds() : 0;
    kinds_ |= kinds | ((kinds & kFree) != 0 ? unsigned{kOwnRows} : 0);  // the node may read a batch that has no edge
    if (!linear) kinds_ |= ((kinds & kBatchMean) != 0 ? kCurved : 0u) | ((kinds & kShifted) != 0 ? kCut : 0u);
    if (edge.node != nullptr) edge.node->consumed();
    edges_.push_back(edge);
  }
  std::uint64_t sequence() const { return sequence_; }
  /// The bits of Normaliser and ValueKind of an output: those of the inputs, unless others were set.
  virtual unsigned kinds_of(int /*output*/) const { return kinds_ == 0 ? unsigned{kOwnRows} : kinds_; }
  void set_kinds(unsigned kinds) { kinds_ = kinds; }
  /// The Normaliser bits of the first output.
  unsigned normalisers() const { return normalisers_in(kinds_of(0)); }
  /// Those of a value of these kinds: one that is free of the batch counts as a mean over the tape's own rows.
  static unsigned normalisers_in(unsigned kinds) {
    const bool own = (kinds & kFree) != 0 || (kinds & kDivisors) == 0;
    return (kinds & kDivisors) | (own ? unsigned{kOwnRows} : 0);
  }
  /// Called once per backward run that will reach this node, before any node runs.
  virtual void reached() {}
  /// Called when another node takes an output of this one.
  virtual void consumed() {}
  /// Notified of every backward run that reaches this node, or null.
  virtual class BackwardListener* listener() { return nullptr; }

 protected:
  /// Makes the node run as soon as its gradients are complete, before operators that could run backward too.
  void run_first() { sequence_ = ~std::uint64_t{0}; }

 private:
  friend class Engine;
  PooledVector<Edge> edges_;
  int outputs_;
  unsigned kinds_ = 0;
  std::uint64_t sequence_ = next_sequence();  // later operators run backward first
  // State of the one backward run that may visit this node at a time.
  std::uint64_t run_ = 0;
  int waiting_ = 0;             // consumers whose gradient has not arrived
  std::uint64_t consumer_ = 0;  // of a leaf: sequence of the last one that depends on the batch; 0: none
  PooledVector<Tensor> arrived_;
  bool has_batch_ = false;  // a gradient of the batch has arrived
  bool used_ = false;       // backward has run, and what it needed is gone

  static std::uint64_t next_sequence();
};

inline unsigned Edge::kinds() const { return node->kinds_of(output); }
inline unsigned Edge::normalisers() const { return Node::normalisers_in(kinds()); }

/// A node where gradients end: a parameter, or a leaf variable. It runs at once when its gradient is complete, so that
/// ddp sends it while the rest of backward runs.
class Leaf : public Node {
 public:
  Leaf() { run_first(); }
  /// The tensor that may receive the complete gradient directly; undefined if backward() must be given it.
  virtual Tensor place() const { return {}; }
  /// Its gradient is the sum of what several consumers gave in this backward run, or will be.
  virtual void adds_up() {}
};

/// Notified once at the begin and once at the end of every backward run that reaches one of its nodes.
class BackwardListener {
 public:
  virtual ~BackwardListener() = default;
  /// Whether gradients of several ranks are added up.
  virtual bool adds_up_ranks() const { return false; }
  /// Whether gradients of several tapes become that of all their rows.
  virtual bool joins_rows() const { return false; }
  /// Whether what is free of the batch is to be added to its gradient once that is complete, in a run of its own.
  virtual bool adds_free_last() const { return false; }
  /// Sums these numbers over the ranks, before backward_begins(). For one listener of those with adds_free_last().
  virtual void sum_over_ranks(std::span<std::int64_t> /*numbers*/) {}
  /// Before any node runs. `normalisers`: those of the roots; kFree: of that run.
  virtual void backward_begins(unsigned normalisers) = 0;
  virtual void backward_ended() = 0;
};

/// An output from which a backward run starts, and its gradient. Undefined: 1, of a node that starts_from_one(), alone.
struct BackwardRoot {
  Edge edge;
  Tensor gradient;
};

/// Runs every node below the roots once, each when the gradients of all its consumers have arrived, later operators
/// first. A leaf is reached only with its complete gradient, so a hook on it fires when the last contribution is in.
/// Runs on the calling thread. Throws Error when a root requires no gradient.
void run_backward(std::span<const BackwardRoot> roots);

}  // namespace duet
