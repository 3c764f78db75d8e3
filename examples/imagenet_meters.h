// Counts what imagenet.cpp prints for each batch, as main.py's AverageMeter and ProgressMeter do.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>

#include <duet/ddp/group/process_group.h>
#include <duet/lib/autograd/variable.h>
#include <duet/lib/error.h>
#include <duet/lib/ops/losses.h>
#include <duet/lib/tensor.h>

namespace examples {

using namespace duet;

/// The last value of a quantity, and its mean over all values.
class Meter {
 public:
  /// Prints numbers with at least `width` characters and `precision` digits after the point.
  Meter(std::string name, int width, int precision, bool scientific = false)
      : name_(std::move(name)), width_(width), precision_(precision), pattern_(scientific ? "%*.*e" : "%*.*f") {}

  /// Adds `count` values, at least one, whose sum is `sum`: the sum of the losses of a batch's rows, say.
  void add(double sum, std::int64_t count = 1) {
    last_ = sum / static_cast<double>(count);
    sum_ += sum;
    count_ += count;
  }
  void all_reduce(ddp::ProcessGroup& group) {
    group.all_reduce(std::span(&sum_, 1)).wait();
    group.all_reduce(std::span(&count_, 1)).wait();
  }
  double average() const { return sum_ / static_cast<double>(count_); }
  /// "Acc@1  75.00 ( 62.50)": the mean of the values added last, and of all.
  std::string str() const {
    return concat(name_, ' ', number(last_, width_, precision_), " (", number(average(), width_, precision_), ')');
  }
  /// "Acc@1 62.500": the mean of all values.
  std::string summary() const { return concat(name_, ' ', number(average(), 0, 3)); }

 private:
  std::string number(double value, int width, int precision) const {
    char text[64];
    std::snprintf(text, sizeof text, pattern_, width, precision, value);
    return text;
  }

  std::string name_;
  int width_, precision_;
  const char* pattern_;
  double last_ = 0, sum_ = 0;
  std::int64_t count_ = 0;
};

/// Counts the loss and the accuracies of each batch in training and validation.
struct Meters {
  Meter loss{"Loss", 0, 4, true}, top1{"Acc@1", 6, 2}, top5{"Acc@5", 6, 2};

  /// Adds nothing for a rank that has no rows of the batch.
  void add(const Variable& output, const Variable& of_loss, const Tensor& labels) {
    const std::int64_t rows = output.value().size(0), classes = output.value().size(1);
    if (rows == 0) return;
    loss.add(static_cast<double>(of_loss.item()) * static_cast<double>(rows), rows);
    top1.add(100.0 * static_cast<double>(ops::count_in_top(output, labels, 1)), rows);
    top5.add(100.0 * static_cast<double>(ops::count_in_top(output, labels, std::min<std::int64_t>(5, classes))), rows);
  }
  void all_reduce(ddp::ProcessGroup& group) {
    for (Meter* const meter : {&loss, &top1, &top5}) meter->all_reduce(group);
  }
};

/// "Epoch: [0][ 10/391]", a tab and the meters' texts with tabs between them.
inline std::string progress_line(const std::string& prefix, std::int64_t batches_done, std::int64_t batches,
                                 std::initializer_list<const Meter*> meters) {
  const std::string all = std::to_string(batches), done = std::to_string(batches_done);
  std::string line = concat(prefix, '[', std::string(all.size() - done.size(), ' '), done, '/', all, ']');
  for (const Meter* const meter : meters) line += '\t' + meter->str();
  return line;
}

}  // namespace examples
