// Every collective, reduction and dtype of a group, against plain loops.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ddp/group/process_group.h"
#include "lib/error.h"

namespace duet_test {

using duet::ddp::ProcessGroup;
using duet::ddp::ReduceOp;

inline constexpr ReduceOp kReduceOps[] = {ReduceOp::sum, ReduceOp::product, ReduceOp::min, ReduceOp::max,
                                          ReduceOp::avg};

/// Element i of a rank's input: small whole numbers, so that the order of sums does not show.
template <class T>
T input_value(int rank, std::size_t i) {
  return static_cast<T>(static_cast<float>((static_cast<std::size_t>(rank) * 7 + i * 3) % 5 + 1));
}

template <class T>
T reduced_value(int size, std::size_t i, ReduceOp op) {
  T all = input_value<T>(0, i);
  for (int rank = 1; rank < size; ++rank) {
    const T x = input_value<T>(rank, i);
    if (op == ReduceOp::sum || op == ReduceOp::avg) all = static_cast<T>(all + x);
    if (op == ReduceOp::product) all = static_cast<T>(all * x);
    if (op == ReduceOp::min) all = x < all ? x : all;
    if (op == ReduceOp::max) all = all < x ? x : all;
  }
  return op == ReduceOp::avg ? static_cast<T>(all / static_cast<T>(static_cast<float>(size))) : all;
}

/// One rank's calls with `count` elements per rank; records what differs from the plain loops.
template <class T>
class CollectiveTable {
 public:
  CollectiveTable(ProcessGroup& group, std::size_t count, std::vector<std::string>& faults)
      : group_(group), count_(count), faults_(faults) {}

  void run(std::span<const ReduceOp> ops) {
    for (const ReduceOp op : ops)
      if (op != ReduceOp::avg || is_floating(duet::dtype_of<T>())) reduce(op);
    move();
    message();
  }

 private:
  using Values = std::vector<T>;
  std::size_t ranks() const { return static_cast<std::size_t>(group_.size()); }
  std::size_t own() const { return static_cast<std::size_t>(group_.rank()); }

  Values input(int rank, std::size_t count, std::size_t from = 0) const {
    Values values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = input_value<T>(rank, from + i);
    return values;
  }
  Values result(std::size_t count, ReduceOp op, std::size_t from = 0) const {
    Values values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = reduced_value<T>(group_.size(), from + i, op);
    return values;
  }
  /// `count_` elements of every rank, those from `from` on.
  Values pieces(std::size_t from = 0) const {
    Values all;
    for (int rank = 0; rank < group_.size(); ++rank) {
      const Values one = input(rank, count_, from);
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }
  void expect(std::string_view what, const Values& got, const Values& wanted) {
    if (got != wanted)
      faults_.push_back(duet::concat(what, " of ", count_, " ", duet::dtype_of<T>(), " on rank ", group_.rank(), " of ",
                                     group_.size(), " over ", group_.backend()));
  }
  static std::span<T> span(Values& values) { return values; }

  void reduce(ReduceOp op) {
    const std::string title = duet::concat(" (", duet::ddp::name(op), ")");
    Values values = input(group_.rank(), count_);
    group_.all_reduce(span(values), op).wait();
    expect("all_reduce" + title, values, result(count_, op));
    for (int root = 0; root < group_.size(); ++root) {
      values = input(group_.rank(), count_);
      group_.reduce(span(values), root, op).wait();
      expect("reduce" + title, values, root == group_.rank() ? result(count_, op) : input(group_.rank(), count_));
    }
    Values all = input(group_.rank(), count_ * ranks()), piece(count_);
    group_.reduce_scatter(span(all), span(piece), op).wait();
    expect("reduce_scatter" + title, piece, result(count_, op, own() * count_));
    expect("the input of reduce_scatter" + title, all, input(group_.rank(), count_ * ranks()));
    const auto inside = span(all).subspan(own() * count_, count_);
    group_.reduce_scatter(span(all), inside, op).wait();
    expect("reduce_scatter in place" + title, {inside.begin(), inside.end()}, result(count_, op, own() * count_));
  }

  void move() {
    for (int root = 0; root < group_.size(); ++root) {
      const bool on_root = root == group_.rank();
      Values values = input(group_.rank(), count_);
      group_.broadcast(span(values), root).wait();
      expect("broadcast", values, input(root, count_));
      values = input(group_.rank(), count_);
      Values all(on_root ? count_ * ranks() : 0);
      group_.gather(span(values), span(all), root).wait();
      expect("gather", all, on_root ? pieces() : Values());
      all = on_root ? pieces() : Values();
      values.assign(count_, T());
      group_.scatter(span(all), span(values), root).wait();
      expect("scatter", values, input(group_.rank(), count_));
    }
    Values values = input(group_.rank(), count_), all(count_ * ranks());
    group_.all_gather(span(values), span(all)).wait();
    expect("all_gather", all, pieces());
    values = input(group_.rank(), count_ * ranks());
    group_.all_to_all(span(values), span(all)).wait();
    expect("all_to_all", all, pieces(own() * count_));
    group_.barrier().wait();
  }

  /// Round the ring, both ways at once.
  void message() {
    if (group_.size() == 1) return;
    const int right = (group_.rank() + 1) % group_.size(), left = (group_.rank() + group_.size() - 1) % group_.size();
    Values mine = input(group_.rank(), count_), from_left(count_), from_right(count_);
    duet::ddp::Work works[] = {group_.send(span(mine), right, 1), group_.send(span(mine), left, 2),
                               group_.recv(span(from_right), right, 2), group_.recv(span(from_left), left, 1)};
    for (duet::ddp::Work& work : works) work.wait();
    expect("a message to the right", from_left, input(left, count_));
    expect("a message to the left", from_right, input(right, count_));
  }

  ProcessGroup& group_;
  std::size_t count_;
  std::vector<std::string>& faults_;
};

/// What differs in `group`, of which all ranks call this.
inline std::vector<std::string> faults_of(ProcessGroup& group) {
  std::vector<std::string> faults;
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{1003}}) {
    CollectiveTable<float>(group, count, faults).run(kReduceOps);
    CollectiveTable<double>(group, count, faults).run(kReduceOps);
    CollectiveTable<std::int32_t>(group, count, faults).run(kReduceOps);
    CollectiveTable<std::int64_t>(group, count, faults).run(kReduceOps);
    CollectiveTable<std::uint8_t>(group, count, faults).run(kReduceOps);
    CollectiveTable<duet::Float16>(group, count, faults).run(kReduceOps);
    CollectiveTable<duet::BFloat16>(group, count, faults).run(kReduceOps);
  }
  CollectiveTable<float>(group, 150'001, faults).run({kReduceOps, 1});  // more than fits any staging memory at once
  return faults;
}

}  // namespace duet_test
