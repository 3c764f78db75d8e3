#include "report/page/chart.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace duet::cli {

ChartSeries& Chart::series_of(const std::string& name, const std::string& colour, const std::string& shape) {
  const auto found =
      std::find_if(series.begin(), series.end(), [&](const ChartSeries& one) { return one.name == name; });
  return found != series.end() ? *found : series.emplace_back(ChartSeries{name, colour, shape});
}

double Chart::add_row(const std::string& label) {
  rows.push_back(label);
  return static_cast<double>(rows.size() - 1);
}

bool Chart::empty() const {
  return std::all_of(series.begin(), series.end(), [](const ChartSeries& one) { return one.points.empty(); });
}

std::string to_json(const std::vector<Chart>& charts) {
  using Json = nlohmann::ordered_json;
  Json list = Json::array();
  for (const Chart& chart : charts) {
    Json all = Json::array();
    for (const ChartSeries& series : chart.series) {
      Json points = Json::array();
      for (const ChartPoint& point : series.points)
        points.push_back({{"at", point.at},
                          {"value", point.value},
                          {"low", point.low},
                          {"high", point.high},
                          {"tip", point.tip},
                          {"computed", point.computed}});
      all.push_back({{"name", series.name}, {"colour", series.colour}, {"shape", series.shape}, {"points", points}});
    }
    Json marks = Json::array();
    for (const auto& [at, label] : chart.marks) marks.push_back({{"at", at}, {"label", label}});
    list.push_back({{"id", chart.id},
                    {"title", chart.title},
                    {"unit", chart.unit},
                    {"rows", chart.rows},
                    {"side_by_side", chart.side_by_side},
                    {"log_x", chart.log_x},
                    {"log_y", chart.log_y},
                    {"marks", marks},
                    {"series", all}});
  }
  return list.dump();
}

}  // namespace duet::cli
