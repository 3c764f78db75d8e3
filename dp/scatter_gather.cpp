#include "dp/scatter_gather.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>

#include "lib/autograd/grad_mode.h"
#include "lib/backend/backend.h"
#include "lib/base/recovery.h"
#include "lib/error.h"
#include "lib/ops/losses.h"
#include "lib/ops/ops.h"

namespace duet::dp {
namespace {

Tensor on_device(const Tensor& x, Device device) {
  const bool shared = x.device().kind == device.kind && backend(x).shares_memory();
  return shared ? x.alias(device) : x.to(device);
}

/// Elements [begin, begin + size) of dimension `dim` as a tensor on `device`.
Tensor piece_of(const Tensor& x, int dim, std::int64_t begin, std::int64_t size, Device device) {
  if (dim == 0) {
    return on_device(x.rows(begin, begin + size), device);
  }
  Tensor piece = empty(x.shape().with(dim, size), x.dtype(), x.device());
  piece.set_stamp(x.stamp());
  const std::size_t inner = static_cast<std::size_t>(x.shape().count_from(dim + 1)) * size_of(x.dtype());
  const std::size_t pitch = static_cast<std::size_t>(x.size(dim)) * inner;
  const std::size_t width = static_cast<std::size_t>(size) * inner;
  if (width > 0)
    backend(x).copy_2d(piece.raw(), width,
                       static_cast<const std::byte*>(x.raw()) + static_cast<std::size_t>(begin) * inner, pitch, width,
                       x.bytes() / pitch, x.device());
  return piece.to(device);
}

/// The other way round: writes `piece` to elements [begin, ...) of dimension `dim` of `whole`, which is plain.
void place_piece(const Tensor& piece, const Tensor& whole, int dim, std::int64_t begin) {
  const Tensor here = in_layout(piece, Layout::plain).to(whole.device());
  const std::size_t inner = static_cast<std::size_t>(whole.shape().count_from(dim + 1)) * size_of(whole.dtype());
  const std::size_t pitch = static_cast<std::size_t>(whole.size(dim)) * inner;
  const std::size_t width = static_cast<std::size_t>(piece.size(dim)) * inner;
  if (width == 0 || whole.bytes() == 0) return;
  backend(whole).copy_2d(static_cast<std::byte*>(whole.raw()) + static_cast<std::size_t>(begin) * inner, pitch,
                         here.raw(), width, width, whole.bytes() / pitch, whole.device());
}

Tensor joined(std::span<const Tensor> pieces, Device device, int dim) {
  const Shape& first = pieces[0].shape();
  std::int64_t total = 0;
  for (const Tensor& piece : pieces) {
    const bool fits = piece.shape().rank() == first.rank() && piece.dtype() == pieces[0].dtype() &&
                      piece.shape().with(dim, 0) == first.with(dim, 0);
    require<ShapeError>(fits, "gather got an input of invalid size: got ", piece.shape(), ", but expected ",
                        first.with(dim, piece.shape().rank() > dim ? piece.size(dim) : 0));
    total += piece.size(dim);
  }
  Tensor whole = empty(first.with(dim, total), pieces[0].dtype(), device);
  std::int64_t begin = 0;
  for (const Tensor& piece : pieces) {
    place_piece(piece, whole, dim, begin);
    begin += piece.size(dim);
  }
  const auto has_rows = [&](const Tensor& piece) { return piece.size(dim) > 0; };
  const auto filled = std::ranges::find_if(pieces, has_rows);  // its rows are the first of the whole
  const Rows& stamp = (filled == pieces.end() ? pieces[0] : *filled).stamp();
  if (dim == 0 && stamp.stamped()) whole.set_stamp(stamp);
  return whole;
}

/// Gradients of pieces are joined where the whole was.
struct ScatterNode final : Node {
  explicit ScatterNode(int pieces) : Node(pieces) {}
  const char* name() const override { return "scatter"; }
  void backward(const Gradients& g) override {
    PooledVector<Tensor> pieces(g.outputs.begin(), g.outputs.end());
    for (std::size_t i = 0; i < pieces.size(); ++i)
      if (!pieces[i].defined()) pieces[i] = zeros(shapes[i], DType::f32, device);
    g.inputs[0] = joined(pieces, device, dim);
  }
  PooledVector<Shape> shapes;
  Device device;
  int dim = 0;
};

/// The gradient of the whole is cut to where the pieces were.
struct GatherNode final : Node {
  const char* name() const override { return "gather"; }
  void backward(const Gradients& g) override {
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const Tensor piece = piece_of(g.outputs[0], dim, begin, sizes[i], devices[i]);
      g.inputs[i] = scalars ? piece.reshape({}) : piece;
      begin += sizes[i];
    }
  }
  PooledVector<std::int64_t> sizes;
  PooledVector<Device> devices;
  int dim = 0;
  bool scalars = false;
};

/// One of equal parts of a global batch.
struct Part {
  int number = 0, parts = 0;
};

/// The part that n rows with this stamp are: a shard of a sampler, or a half or quarter of it, or a subtree of its
/// blocks; none for other rows.
Part part_of(const Rows& stamp, std::int64_t n) {
  const auto begin = [&](std::int64_t i, int parts) {
    return stamp.owned ? share_begin(i, parts, stamp.global, stamp.blocks) : block_begin(i, stamp.global, parts);
  };
  const auto last_from = [&](int parts) {  // the last that begins at the first row or before
    int low = 0;
    for (int high = parts - 1; low < high;) {
      const int middle = (low + high + 1) / 2;
      begin(middle, parts) <= stamp.first ? low = middle : high = middle - 1;
    }
    return low;
  };
  if (n == 0 || !stamp.stamped()) return {};
  for (const int first : {stamp.shards, 1})
    for (int parts = first; parts <= std::max(stamp.shards, stamp.blocks); parts *= 2) {
      const int number = last_from(parts);
      if (begin(number, parts) == stamp.first && begin(number + 1, parts) == stamp.first + n) return {number, parts};
    }
  return {};
}

/// Rows of the whole batch, as many as possible for each device of all parts.
Cut rows_cut(const Part& part, int k, const Rows& stamp) {
  Cut cut;
  const auto begin = [&](int i) { return block_begin(part.number * k + i, stamp.global, part.parts * k); };
  for (int i = 0; i < k; ++i) {
    cut.sizes.push_back(begin(i + 1) - begin(i));
    cut.devices.push_back(i);
  }
  return cut;
}

/// A piece for each subtree that has rows of the blocks of owners [first, first + k).
Cut owners_cut(int first, int k, int owners, const Rows& stamp) {
  Cut cut;
  const bool one_each = stamp.blocks % owners == 0;  // added up as devices are
  for (int i = 0; i < k; ++i)
    for (const Subtree& subtree : subtrees_of(first + i, owners, stamp.blocks)) {
      const std::int64_t rows = block_begin(subtree.end(), stamp.global, stamp.blocks) -
                                block_begin(subtree.first, stamp.global, stamp.blocks);
      if (rows == 0 && !one_each) continue;
      cut.sizes.push_back(rows);
      cut.devices.push_back(i);
      cut.subtrees.push_back(subtree);
    }
  if (one_each) cut.subtrees.clear();
  return cut;
}

/// Whether each device gets all of a tensor beside a batch of `size` stamped rows: it does not belong to the batch.
bool goes_whole(const Variable& x, const Rows& batch, std::int64_t size) {
  return batch.stamped() && !x.value().stamp().known() && !x.requires_grad() &&
         (x.shape().rank() == 0 || x.shape()[0] != size);
}

}  // namespace

Cut even_cut(std::int64_t n, int k) { return rows_cut({.number = 0, .parts = 1}, k, {.global = n}); }

Cut cut_rows(std::int64_t n, int k, Split split, const Rows& stamp) {
  require<UsageError>(n >= 0 && k >= 1, "cannot cut ", n, " rows into ", k, " pieces");
  if (split == Split::blocked) {
    const Part part = part_of(stamp, n);
    const int owners = part.parts * k;
    if (part.parts == 0 || !stamp.owned) return part.parts > 0 ? rows_cut(part, k, stamp) : even_cut(n, k);
    return owners <= stamp.blocks ? owners_cut(part.number * k, k, owners, stamp) : even_cut(n, k);
  }
  if (n == 0) return even_cut(n, k);
  Cut cut;
  const std::int64_t size = (n + k - 1) / k;
  for (std::int64_t begin = 0; begin < n; begin += size) {
    cut.devices.push_back(static_cast<int>(cut.sizes.size()));
    cut.sizes.push_back(std::min(size, n - begin));
  }
  return cut;
}

PooledVector<Variable> scatter(const Variable& whole, std::span<const Device> devices,
                               std::span<const std::int64_t> sizes, int dim) {
  const Variable x = ops::to_plain(whole);  // its gradient is joined in the plain layout
  const std::int64_t total = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  require<UsageError>(sizes.size() <= devices.size(), "scatter: ", sizes.size(), " chunk sizes for ", devices.size(),
                      " devices");
  require<ShapeError>(std::all_of(sizes.begin(), sizes.end(), [](std::int64_t size) { return size >= 0; }),
                      "scatter: chunk sizes must not be negative");
  require<ShapeError>(total == x.shape()[dim], "scatter: given chunk sizes don't sum up to the tensor's size (sum is ",
                      total, ", but expected ", x.shape()[dim], ")");
  std::shared_ptr<ScatterNode> node;
  if (grad_enabled() && x.requires_grad()) {
    node = make_pooled<ScatterNode>(static_cast<int>(sizes.size()));
    node->add_edge(x.edge(), true);
    node->device = x.device();
    node->dim = dim;
  }
  PooledVector<Variable> pieces;
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const Tensor piece = piece_of(x.value(), dim, begin, sizes[i], devices[i]);
    begin += sizes[i];
    if (node) node->shapes.push_back(piece.shape());
    pieces.push_back(node ? Variable(piece, node, static_cast<int>(i)) : Variable::constant(piece, x.of_batch_mean()));
  }
  return pieces;
}

namespace {

/// Whether the pieces are losses: divided by the rows of the batch that was cut, so that their gradients add up, or
/// numbers that are means over the pieces' own rows.
bool are_losses(std::span<const Variable> pieces, const CutBatch& from) {
  if (!grad_enabled() || pieces.size() != from.cut.sizes.size()) return false;
  unsigned kinds = 0;
  bool numbers = true, of_rows = std::ranges::max(from.cut.sizes) <= 1;  // a mean of one row is not known as one
  for (const Variable& piece : pieces) {
    kinds |= piece.requires_grad() ? piece.edge().kinds() | piece.edge().normalisers() : kFree | unsigned{kOwnRows};
    numbers = numbers && piece.value().count() == 1;
    of_rows = of_rows && piece.shape().rank() == 0;
  }
  of_rows = of_rows || (kinds & kBatchMean) != 0;
  return (kinds & kOwnRows) == 0 || (numbers && of_rows && (kinds & (kDivisors | kBatchSum | kFree)) == kOwnRows);
}

/// Says so if the pieces depend on the rows that each device has: statistics of these without gradients, or sums over
/// unequal numbers of rows that are perhaps divided by them.
void report_own_rows(std::span<const Variable> pieces, const CutBatch& from) {
  const bool even = std::ranges::adjacent_find(from.cut.sizes, std::not_equal_to<>()) == from.cut.sizes.end();
  if (from.said == nullptr || pieces.size() == 1 || (even && pieces[0].value().count() == 1)) return;
  const auto depends = [](const Variable& piece) {
    if (!piece.requires_grad()) return piece.of_batch_mean();
    return (piece.edge().kinds() & (kShifted | (piece.value().count() == 1 ? unsigned{kBatchSum} : 0))) != 0;
  };
  if (std::ranges::none_of(pieces, depends)) return;
  report_dependence(*from.said, [] {
    return std::string(
        "the module gives sums, means or statistics over each device's rows: take ops::mean() for a "
        "loss that is divided by rows, and compute other values from DataParallel's output");
  });
}

}  // namespace

Variable gather(std::span<const Variable> pieces, Device device, int dim, const CutBatch& from) {
  require<ShapeError>(!pieces.empty(), "gather: expected at least one tensor to gather from");
  if (are_losses(pieces, from)) return ops::mean_of_shards(pieces, from.cut.sizes, from.stamp, device);
  const bool scalars = pieces[0].shape().rank() == 0;
  if (scalars && pieces.size() == 1 && !from.cut.subtrees.empty()) return pieces[0];
  const bool several =
      !from.cut.subtrees.empty() && std::ranges::adjacent_find(from.cut.devices) != from.cut.devices.end();
  require<UsageError>(!scalars || !several,
                      "the module gives one number for each run of a device that owns several subtrees of the batch's "
                      "blocks, which is no loss divided by the rows of the global batch: give numbers by row, use a "
                      "number of devices that divides that of the blocks, or batches without a stamp");
  for (std::size_t i = 0; !scalars && !from.cut.subtrees.empty() && i < pieces.size(); ++i)
    require<UsageError>(pieces[i].shape().rank() > dim && pieces[i].shape()[dim] * from.stamp.per_sample ==
                                                              from.cut.sizes[i] * pieces[i].value().stamp().per_sample,
                        "the module gives ", pieces[i].shape(), " for ", from.cut.sizes[i],
                        " rows of a device that owns several subtrees of the batch's blocks, and so runs it on each: "
                        "expected as many rows; use a number of devices that divides that of the blocks, or batches "
                        "without a stamp");
  report_own_rows(pieces, from);
  PooledVector<Variable> plain;
  PooledVector<Tensor> tensors;
  bool record = false;
  for (const Variable& piece : pieces) {
    plain.push_back(ops::to_plain(piece));  // its gradient is cut from a plain one
    tensors.push_back(scalars ? piece.value().reshape({1}) : plain.back().value());
    record |= grad_enabled() && piece.requires_grad();
  }
  const Tensor whole = joined(tensors, device, scalars ? 0 : dim);
  if (!record) return Variable::constant(whole, std::ranges::any_of(pieces, &Variable::of_batch_mean));
  auto node = make_pooled<GatherNode>();
  for (const Variable& piece : plain) {
    node->add_edge(piece.edge(), true);
    node->devices.push_back(piece.device());
  }
  node->dim = scalars ? 0 : dim;
  node->scalars = scalars;
  for (const Tensor& tensor : tensors) node->sizes.push_back(tensor.size(node->dim));
  return Variable(whole, std::move(node));
}

bool fits_batch(const nn::Value& value, const char* effect, std::atomic<bool>& said) {
  const Variable* const batch = nn::first_tensor(value);
  bool fits = true;
  nn::for_each_named_tensor(value, "input", [&](const Variable& x, const std::string& path) {
    const Rows& stamp = x.value().stamp();
    const bool has_rows = x.shape().rank() > 0 && x.shape()[0] == batch->shape()[0];
    if (has_rows ? stamp.keeps_blocks() : !stamp.known() && !x.requires_grad()) return;
    fits = false;
    report_dependence(said, [&] {
      const char* const but = has_rows ? " has as many rows as the batch here, but not its stamp (set_stamp()): "
                                       : " has a stamp or a gradient, but not as many rows as the batch here: ";
      return concat(path, " ", x.shape(), but, effect);
    });
  });
  return fits;
}

Cut cut_of(const nn::Value& value, int devices, int dim, Split split) {
  const Variable* const batch = nn::first_tensor(value);
  if (batch == nullptr) return even_cut(0, devices);
  Rows stamp = batch->value().stamp();
  std::int64_t size = -1;
  std::string place;
  for (const bool finds : {true, false})  // the batch before the others
    nn::for_each_named_tensor(value, "input", [&](const Variable& x, const std::string& path) {
      if (finds ? &x != batch : dim == 0 && goes_whole(x, stamp, size)) return;
      require<ShapeError>(x.shape().rank() > dim, "scatter: ", path, " has shape ", x.shape(),
                          ", which has no dimension ", dim);
      if (finds) size = x.shape()[dim], place = path;
      require<ShapeError>(x.shape()[dim] == size, "scatter: ", path, " has ", x.shape()[dim], " rows, but ", place,
                          " has ", size);
    });
  stamp.owned |= stamp.shards == 1 && stamp.delivery == 0;  // made by hand: no sampler has cut this batch
  return cut_rows(size, devices, split, stamp);
}

PooledVector<nn::Value> scatter(const nn::Value& value, std::span<const Device> devices, int dim, Split split) {
  return scatter(value, devices, cut_of(value, static_cast<int>(devices.size()), dim, split), dim);
}

PooledVector<nn::Value> scatter(const nn::Value& value, std::span<const Device> devices, const Cut& cut, int dim) {
  PooledVector<Device> places;
  for (const int device : cut.devices) places.push_back(devices[static_cast<std::size_t>(device)]);
  PooledVector<PooledVector<Variable>> pieces;
  const Variable* const batch = nn::first_tensor(value);
  const std::int64_t size = std::accumulate(cut.sizes.begin(), cut.sizes.end(), std::int64_t{0});
  nn::for_each_tensor(value, [&](const Variable& x) {
    const bool whole = dim == 0 && goes_whole(x, batch->value().stamp(), size);
    pieces.push_back(whole ? PooledVector<Variable>() : scatter(x, places, cut.sizes, dim));
    for (std::size_t i = 0; whole && i < places.size(); ++i)
      pieces.back().push_back(Variable::constant(on_device(x.value(), places[i]), x.of_batch_mean()));
  });
  if (pieces.empty()) return PooledVector<nn::Value>(places.size(), value);
  PooledVector<nn::Value> values;
  for (std::size_t i = 0; i < places.size(); ++i) {
    std::size_t next = 0;
    values.push_back(nn::map_tensors(value, [&](const Variable&) { return pieces[next++][i]; }));
  }
  return values;
}

nn::Value gather(std::span<const nn::Value> pieces, Device device, int dim, const CutBatch& from) {
  require<ShapeError>(!pieces.empty(), "gather: expected at least one tensor to gather from");
  const nn::Value& first = pieces[0];
  for (const nn::Value& piece : pieces)
    require<ShapeError>(std::string_view(piece.kind()) == first.kind(), "gather: got a ", piece.kind(),
                        ", but expected a ", first.kind());
  if (first.is_variable()) {
    PooledVector<Variable> variables;
    for (const nn::Value& piece : pieces) variables.push_back(piece.variable());
    return gather(std::span<const Variable>(variables), device, dim, from);
  }
  const auto gather_item = [&](auto item_of) {
    PooledVector<nn::Value> items;
    for (const nn::Value& piece : pieces) items.push_back(item_of(piece));
    return gather(std::span<const nn::Value>(items), device, dim, from);
  };
  if (first.is_list()) {
    nn::List list;
    for (const nn::Value& piece : pieces)
      require<ShapeError>(piece.list().size() == first.list().size(), "gather: lists of ", piece.list().size(), " and ",
                          first.list().size(), " items");
    for (std::size_t i = 0; i < first.list().size(); ++i)
      list.push_back(gather_item([i](const nn::Value& piece) { return piece.list()[i]; }));
    return list;
  }
  if (first.is_dict()) {
    nn::Dict dict;
    for (const nn::Value& piece : pieces)
      require<ShapeError>(piece.dict().size() == first.dict().size(),
                          "gather: all dicts must have the same number of keys, got ", piece.dict().size(), " and ",
                          first.dict().size());
    for (const auto& [name, item] : first.dict()) {
      const std::string& key = name;
      dict.emplace_back(key, gather_item([&key](const nn::Value& piece) {
                          for (const auto& [other, value] : piece.dict())
                            if (other == key) return value;
                          throw ShapeError(concat("gather: no key '", key, "' in one of the dicts"));
                        }));
    }
    return dict;
  }
  return first;
}

}  // namespace duet::dp
