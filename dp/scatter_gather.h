// The first and the last of data parallelism's four steps: a batch is cut into one piece per device, and the pieces of
// the result are joined again.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "lib/blocks.h"
#include "lib/nn/value.h"
#include "lib/pool.h"
#include "lib/tensor.h"

namespace duet::dp {

/// How a batch is cut into pieces.
enum class Split {
  chunk,    // PyTorch's: pieces of ceil(n / k), the last one smaller, perhaps fewer than k
  blocked,  // whole blocks of the global batch, where there are enough for so many ranks and devices
};

/// A batch that is cut for devices.
struct Cut {
  PooledVector<std::int64_t> sizes{};  // rows of each piece
  PooledVector<int> devices{};         // number of each piece's device, ascending
  PooledVector<Subtree> subtrees{};    // blocks of each piece; empty: each device has one piece
  bool operator==(const Cut&) const = default;
};

/// Cuts n rows for k devices. Blocked pieces may be empty; chunks are not, but for n = 0, and may be fewer than k.
/// Of a rank's shard, or another power of 2 of equal parts that a batch is cut into, a blocked split is that of the
/// whole batch for all parts' devices, as the `stamp` of the rows says. Where the stamp's blocks have owners (Note
/// [Owners] in lib/blocks.h), and the devices do not divide their number, a device has a piece for each of its subtrees
/// that has rows. Other rows, and those of more devices than blocks, are cut evenly: piece i of n rows reaches from
/// floor(i n / k) to floor((i + 1) n / k).
Cut cut_rows(std::int64_t n, int k, Split split, const Rows& stamp = {});

/// Cuts x along `dim` into pieces of these sizes, the i-th on devices[i]; a stamp is narrowed. Pieces of dimension 0 on
/// devices that share memory are views. The gradient of the pieces is gathered. Throws ShapeError unless the sizes are
/// positive or blocked-empty and sum up to the size of `dim`.
PooledVector<Variable> scatter(const Variable& x, std::span<const Device> devices, std::span<const std::int64_t> sizes,
                               int dim = 0);

/// Scatters every tensor of a value; lists and dictionaries are walked, anything else goes to each device as it is. So
/// does, beside a batch with a stamp, a tensor without one that has other rows. The number of pieces is that of the
/// tensors. Throws ShapeError that names the tensors when their sizes of `dim` disagree. A value without tensors gives
/// one piece per device.
PooledVector<nn::Value> scatter(const nn::Value& value, std::span<const Device> devices, int dim = 0,
                                Split split = Split::chunk);
/// Likewise for a cut of the value.
PooledVector<nn::Value> scatter(const nn::Value& value, std::span<const Device> devices, const Cut& cut, int dim = 0);
/// n rows for k devices, as many each as possible.
Cut even_cut(std::int64_t n, int k);
/// Cuts the rows of a value, or of another dimension. Throws as scatter(). A stamp that was made by hand counts as
/// owned unless it is of a rank's shard.
Cut cut_of(const nn::Value& value, int devices, int dim = 0, Split split = Split::chunk);

/// Whether each tensor of a value has the stamp and the rows of its batch, or neither. Says which one has not, and with
/// what effect: see report_dependence().
bool fits_batch(const nn::Value& value, const char* effect, std::atomic<bool>& said);

/// Where pieces come from, for gather(): the cut, and the stamp of what was cut.
struct CutBatch {
  Cut cut{};
  Rows stamp{};
  std::atomic<bool>* said = nullptr;  // whether pieces that depend on the cut were reported; null: no matter
};

/// Joins pieces along `dim` on `device`; scalars become a vector. The gradient is scattered to the pieces. Throws
/// ShapeError that shows both sizes when pieces do not fit. Losses that were divided by the rows of the batch `from`
/// which the pieces come become the loss of all its rows instead, of the shape that one device gives: their gradients
/// are shares of one sum. Throws UsageError for other scalars of a device with several pieces, as what they are of all
/// pieces is not known, and for tensors of such a piece that do not have its rows.
Variable gather(std::span<const Variable> pieces, Device device, int dim = 0, const CutBatch& from = {});
/// Joins values of the same structure; throws ShapeError when structures differ.
nn::Value gather(std::span<const nn::Value> pieces, Device device, int dim = 0, const CutBatch& from = {});

}  // namespace duet::dp
