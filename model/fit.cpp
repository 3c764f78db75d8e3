#include "model/fit.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <set>
#include <utility>

#include "cli/system/number_text.h"
#include "lib/error.h"
#include "measure/statistics.h"

namespace duet::cli {
namespace {

/// One term of a sum: its name in notes, and its value at a point with coefficient 1.
struct Term {
  std::string name;
  std::function<double(double)> value;
};

struct Coefficients {
  std::vector<double> values;
  double squares = 0, worst = 0;  // sum and largest of relative errors
  std::string note{};
};

/// Gauss elimination with pivots; 0 for a term that the others determine.
std::vector<double> solved(std::vector<std::vector<double>> rows) {
  const std::size_t n = rows.size();
  for (std::size_t column = 0; column < n; ++column) {
    std::size_t pivot = column;
    for (std::size_t row = column + 1; row < n; ++row)
      if (std::fabs(rows[row][column]) > std::fabs(rows[pivot][column])) pivot = row;
    std::swap(rows[column], rows[pivot]);
    if (std::fabs(rows[column][column]) < 1e-12) continue;
    for (std::size_t row = 0; row < n; ++row) {
      const double factor = row == column ? 0 : rows[row][column] / rows[column][column];
      for (std::size_t i = column; factor != 0 && i <= n; ++i) rows[row][i] -= factor * rows[column][i];
    }
  }
  std::vector<double> out(n, 0);
  for (std::size_t i = 0; i < n; ++i)
    if (std::fabs(rows[i][i]) >= 1e-12) out[i] = rows[i][n] / rows[i][i];
  return out;
}

/// Normal equations of the relative errors; each term is divided by its largest value.
std::vector<double> least_squares(const std::vector<TimePoint>& points, const std::vector<Term>& terms) {
  const std::size_t n = terms.size();
  std::vector<double> scales(n, 0);
  for (std::size_t i = 0; i < n; ++i)
    for (const TimePoint& point : points) scales[i] = std::max(scales[i], terms[i].value(point.at) / point.us);
  for (double& scale : scales) scale = scale > 0 ? scale : 1;
  std::vector<std::vector<double>> rows(n, std::vector<double>(n + 1, 0));
  for (const TimePoint& point : points)
    for (std::size_t i = 0; i < n; ++i) {
      const double value = terms[i].value(point.at) / point.us / scales[i];
      for (std::size_t j = 0; j < n; ++j) rows[i][j] += value * terms[j].value(point.at) / point.us / scales[j];
      rows[i][n] += value;
    }
  std::vector<double> out = solved(std::move(rows));
  for (std::size_t i = 0; i < n; ++i) out[i] /= scales[i];
  return out;
}

/// As fit.h says: none of them negative.
Coefficients fitted(const std::vector<TimePoint>& points, const std::vector<Term>& terms) {
  Coefficients out{.values = std::vector<double>(terms.size(), 0)};
  std::vector<std::size_t> kept(terms.size());
  for (std::size_t i = 0; i < kept.size(); ++i) kept[i] = i;
  while (!kept.empty()) {
    std::vector<Term> chosen;
    for (const std::size_t i : kept) chosen.push_back(terms[i]);
    const std::vector<double> values = least_squares(points, chosen);
    const auto least = std::min_element(values.begin(), values.end());
    if (*least >= 0) {
      for (std::size_t i = 0; i < kept.size(); ++i) out.values[kept[i]] = values[i];
      break;
    }
    const auto clamped = kept.begin() + (least - values.begin());
    out.note += concat(out.note.empty() ? "" : "; ", terms[*clamped].name, " came out as ", shortest(*least),
                       " and was clamped to 0");
    kept.erase(clamped);
  }
  for (const TimePoint& point : points) {
    double us = 0;
    for (std::size_t i = 0; i < terms.size(); ++i) us += out.values[i] * terms[i].value(point.at);
    const double error = us / point.us - 1;
    out.squares += error * error;
    out.worst = std::max(out.worst, std::fabs(error));
  }
  return out;
}

bool positive(double value) { return std::isfinite(value) && value > 0; }

/// Why there is nothing to fit; empty where there is.
std::string why_not(const std::vector<TimePoint>& points, std::size_t least, const char* what) {
  std::set<double> places;
  for (const TimePoint& point : points) {
    if (!positive(point.at) || !positive(point.us))
      return concat("a time of ", point.us, " us at ", point.at, " ", what, ", expected positive numbers");
    places.insert(point.at);
  }
  if (places.size() >= least) return "";
  return concat("times at ", places.size(), " different ", what, ", expected ", least, " or more");
}

double one(double /*at*/) { return 1; }

Coefficients with_knee(const std::vector<TimePoint>& points, double knee) {
  return fitted(points, {{"fixed_us", one},
                         {"per_sample_us", [=](double batch) { return std::min(batch, knee); }},
                         {"per_sample_us above the knee", [=](double batch) { return std::max(0.0, batch - knee); }}});
}

}  // namespace

Fitted<StepCost> fit_step_cost(const std::vector<TimePoint>& points) {
  if (const std::string why = why_not(points, 3, "batches"); !why.empty()) return {.note = why};
  const Coefficients line = fitted(points, {{"fixed_us", one}, {"per_sample_us", [](double batch) { return batch; }}});
  Fitted<StepCost> out{
      .value = StepCost{.fixed_us = line.values[0], .per_sample_us = line.values[1], .worst_error_share = line.worst},
      .note = line.note};
  out.value->measured = points;
  std::sort(out.value->measured.begin(), out.value->measured.end(),
            [](const TimePoint& a, const TimePoint& b) { return a.at < b.at; });
  if (points.size() < 5 || line.worst <= 0.01) return out;
  std::set<double> batches;
  for (const TimePoint& point : points) batches.insert(point.at);
  double least = line.squares * std::pow(0.05, 2.0 / static_cast<double>(points.size() - 4));
  for (const double knee : batches) {
    if (knee == *batches.begin() || knee == *batches.rbegin()) continue;
    const Coefficients lines = with_knee(points, knee);
    if (lines.squares >= least) continue;
    least = lines.squares;
    out.value = {.fixed_us = lines.values[0],
                 .per_sample_us = lines.values[1],
                 .knee = StepCost::Knee{.batch = knee, .per_sample_us = lines.values[2]},
                 .measured = std::move(out.value->measured),
                 .worst_error_share = lines.worst};
    out.note = lines.note;
  }
  return out;
}

Fitted<TransferCost> fit_transfer(const std::vector<TimePoint>& points) {
  if (const std::string why = why_not(points, 2, "sizes"); !why.empty()) return {.note = why};
  const Coefficients line = fitted(points, {{"latency_us", one}, {"us per byte", [](double bytes) { return bytes; }}});
  const double rate = line.values[1] > 0 ? 1 / line.values[1] : std::numeric_limits<double>::infinity();
  return {.value = TransferCost{.latency_us = line.values[0], .bytes_per_us = rate}, .note = line.note};
}

Fitted<double> fit_slowdown(const std::vector<SlowdownRound>& rounds) {
  std::vector<double> factors;
  for (const SlowdownRound& round : rounds) {
    if (!positive(round.alone_us) || !positive(round.together_us))
      return {.note = concat("a round of ", round.alone_us, " us alone and ", round.together_us,
                             " us together, expected positive numbers")};
    factors.push_back(round.together_us / round.alone_us);
  }
  if (factors.empty()) return {.note = "no rounds"};
  return {.value = median(factors)};
}

StepOverhead fit_overhead(const std::vector<TimePoint>& beyond) {
  double sum_us = 0;
  for (const TimePoint& point : beyond) sum_us += point.us;
  const double mean_us = beyond.empty() ? 0 : std::max(0.0, sum_us / static_cast<double>(beyond.size()));
  if (beyond.size() != 2 || beyond[0].at == beyond[1].at) return {.fixed_us = mean_us};
  const double slope = (beyond[1].us - beyond[0].us) / (beyond[1].at - beyond[0].at);
  const double fixed_us = beyond[0].us - slope * beyond[0].at;
  if (slope <= 0) return {.fixed_us = mean_us};
  if (fixed_us >= 0) return {.fixed_us = fixed_us, .per_sample_us = slope};
  return {.per_sample_us = std::max(0.0, sum_us / (beyond[0].at + beyond[1].at))};
}

Fitted<double> fit_spread(const std::vector<double>& step_us) {
  constexpr std::size_t kFewest = 8;
  if (step_us.size() < kFewest) return {.note = concat(step_us.size(), " steps, expected ", kFewest, " or more")};
  std::vector<double> sorted = step_us;
  for (const double us : sorted)
    if (!positive(us)) return {.note = concat("a step of ", us, " us, expected positive numbers")};
  std::sort(sorted.begin(), sorted.end());
  const auto quantile = [&](double share) {
    const double at = share * static_cast<double>(sorted.size() - 1);
    const auto below = static_cast<std::size_t>(at);
    const std::size_t above = std::min(below + 1, sorted.size() - 1);
    return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
  };
  const double share = (quantile(0.75) - quantile(0.25)) / 1.349 / quantile(0.5);
  if (share <= 1) return {.value = share};
  return {.value = 1, .note = concat("the spread came out as ", shortest(share), " and was clamped to 1")};
}

Fitted<std::vector<GradientBucket>> fit_buckets(const std::vector<double>& bytes,
                                                const std::vector<BackwardTimes>& steps) {
  if (bytes.empty() || steps.empty()) return {.note = concat(bytes.size(), " buckets of ", steps.size(), " steps")};
  Fitted<std::vector<GradientBucket>> out{.value = std::vector<GradientBucket>{}};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::vector<double> shares;
    for (const BackwardTimes& step : steps) {
      if (step.ready_us.size() != bytes.size() || !positive(step.backward_us))
        return {.note = concat("a step of ", step.ready_us.size(), " buckets and a backward of ", step.backward_us,
                               " us, expected ", bytes.size(), " buckets and a positive time")};
      shares.push_back(step.ready_us[i] / step.backward_us);
    }
    const double share = std::clamp(median(shares), 0.0, 1.0);
    if (share != median(shares)) out.note = concat("bucket ", i, " was ready outside of backward, and was clamped");
    out.value->push_back({.bytes = bytes[i], .ready_share = share});
  }
  return out;
}

}  // namespace duet::cli
