// The progress that a training prints: averages, and lines of them in the format of PyTorch's ImageNet program.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace duet {

/// The format of a number: at least `width` characters with `precision` digits behind the point.
struct MeterFormat {
  int width = 0, precision = 6;
  bool scientific = false;  // "2.3026e+00"
};

/// The last value of a quantity, and its mean over everything that was added. Not thread-safe.
class AverageMeter {
 public:
  explicit AverageMeter(std::string name, const MeterFormat& format = {}) : name_(std::move(name)), format_(format) {}

  /// Adds `count` values whose sum is `sum`: the sum of the losses of a batch's rows, say. Nothing for no values.
  /// Throws UsageError for a negative count.
  void add(double sum, std::int64_t count = 1);
  /// Sets the totals, as after a sum over ranks.
  void set(double sum, std::int64_t count);

  double sum() const { return sum_; }
  std::int64_t count() const { return count_; }
  /// NaN while there is nothing.
  double average() const { return sum_ / static_cast<double>(count_); }

  /// "Acc@1  75.00 ( 62.50)": the mean of what was added last, and of all.
  std::string str() const;
  /// "Acc@1 62.500": of all.
  std::string summary() const;

 private:
  std::string number(double value) const;

  std::string name_;
  MeterFormat format_;
  double last_ = 0, sum_ = 0;
  std::int64_t count_ = 0;
};

/// "Epoch: [0][ 10/391]", a tab and the meters' texts with tabs between them. The meters must outlive it.
class ProgressMeter {
 public:
  ProgressMeter(std::string prefix, std::int64_t batches, std::vector<const AverageMeter*> meters)
      : prefix_(std::move(prefix)), batches_(batches), meters_(std::move(meters)) {}

  /// After so many batches.
  std::string line(std::int64_t batches_done) const;

 private:
  std::string prefix_;
  std::int64_t batches_;
  std::vector<const AverageMeter*> meters_;
};

}  // namespace duet
