#include "lib/base/progress_meter.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <string>

#include "lib/error.h"

namespace duet {
namespace {

std::string formatted(double value, const MeterFormat& format) {
  const char* const pattern = format.scientific ? "%*.*e" : "%*.*f";
  char text[400];  // the largest double has 309 digits before the point
  const int length = std::snprintf(text, sizeof text, pattern, format.width, format.precision, value);
  return std::string(text, static_cast<std::size_t>(std::clamp(length, 0, static_cast<int>(sizeof text) - 1)));
}

}  // namespace

void AverageMeter::add(double sum, std::int64_t count) {
  require<UsageError>(count >= 0, name_, ": got ", count, " values, expected 0 or more");
  if (count == 0) return;
  last_ = sum / static_cast<double>(count);
  sum_ += sum;
  count_ += count;
}

void AverageMeter::set(double sum, std::int64_t count) {
  require<UsageError>(count >= 0, name_, ": got ", count, " values, expected 0 or more");
  sum_ = sum;
  count_ = count;
}

std::string AverageMeter::number(double value) const { return formatted(value, format_); }

std::string AverageMeter::str() const { return name_ + ' ' + number(last_) + " (" + number(average()) + ')'; }

std::string AverageMeter::summary() const { return name_ + ' ' + formatted(average(), {.precision = 3}); }

std::string ProgressMeter::line(std::int64_t batches_done) const {
  const std::string all = std::to_string(batches_), done = std::to_string(batches_done);
  std::string text =
      prefix_ + '[' + std::string(all.size() - std::min(all.size(), done.size()), ' ') + done + '/' + all + ']';
  for (const AverageMeter* meter : meters_) text += '\t' + meter->str();
  return text;
}

}  // namespace duet
