// The pictures of a report, of many made-up comparisons: well-formed, and no label on another or on a curve.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cli/report/batches.h"
#include "cli/report/charts/labels.h"
#include "cli/report/losses.h"
#include "cli/report/report.h"
#include "tests/cli/made_up.h"
#include "tests/support/catch2.h"

using namespace duet::cli;
#if DUET_CATCH == 3
using duet_test::Approx;
#endif

namespace {

struct Element {
  std::string name, text;
  std::map<std::string, std::string> attributes;

  double number(const char* attribute) const { return std::stod(attributes.at(attribute)); }
  std::string css() const { return attributes.count("class") > 0 ? attributes.at("class") : ""; }
};

/// All elements of XML without comments; throws where tags do not match.
std::vector<Element> parse(const std::string& xml) {
  std::vector<Element> all;
  std::vector<std::size_t> open;
  for (std::size_t at = xml.find('<'); at != std::string::npos; at = xml.find('<', at + 1)) {
    const std::size_t end = xml.find('>', at);
    const std::string tag = xml.substr(at + 1, end - at - 1);
    if (tag[0] == '/') {
      if (open.empty() || all[open.back()].name != tag.substr(1)) throw std::runtime_error("</" + tag + ">");
      open.pop_back();
      continue;
    }
    Element element;
    std::size_t space = tag.find_first_of(" /");
    element.name = tag.substr(0, space);
    for (std::size_t quote; space != std::string::npos && (quote = tag.find("=\"", space)) != std::string::npos;) {
      const std::size_t name = tag.find_first_not_of(' ', space), close = tag.find('"', quote + 2);
      element.attributes[tag.substr(name, quote - name)] = tag.substr(quote + 2, close - quote - 2);
      space = close + 1;
    }
    element.text = xml.substr(end + 1, xml.find('<', end) - end - 1);
    all.push_back(element);
    if (tag.back() != '/') open.push_back(all.size() - 1);
  }
  if (!open.empty()) throw std::runtime_error("<" + all[open.back()].name + "> is not closed");
  return all;
}

Box box_of(const Element& text) {
  return text_box(text.number("x"), text.number("y"), text.text, text.attributes.at("text-anchor"));
}

/// The strokes of curves and of the bars at their points.
std::vector<Segment> strokes_of(const std::vector<Element>& elements) {
  std::vector<Segment> strokes;
  for (const Element& element : elements) {
    if (element.name == "line" && element.css().starts_with("range"))
      strokes.push_back({element.number("x1"), element.number("y1"), element.number("x2"), element.number("y2")});
    if (element.name != "polyline") continue;
    std::vector<double> numbers;
    std::string points = element.attributes.at("points");
    std::replace(points.begin(), points.end(), ',', ' ');
    for (std::size_t at = 0; points.find_first_not_of(' ', at) != std::string::npos; at = points.find(' ', at + 1))
      numbers.push_back(std::stod(points.substr(at)));
    for (std::size_t i = 3; i < numbers.size(); i += 2)
      strokes.push_back({numbers[i - 3], numbers[i - 2], numbers[i - 1], numbers[i]});
  }
  return strokes;
}

/// The bars and dots.
std::vector<Box> bodies_of(const std::vector<Element>& elements) {
  std::vector<Box> bodies;
  for (const Element& element : elements) {
    if (element.name == "rect") {
      const double x = element.number("x"), y = element.number("y");
      bodies.push_back({x, y, x + element.number("width"), y + element.number("height")});
    }
    if (element.name == "circle") {
      const double x = element.number("cx"), y = element.number("cy");
      bodies.push_back({x - 4, y - 4, x + 4, y + 4});
    }
  }
  return bodies;
}

/// What is wrong with the places of a picture's elements.
std::vector<std::string> faults_of(const std::string& svg) {
  std::vector<std::string> faults;
  if (svg.empty()) return faults;
  const std::vector<Element> elements = parse(svg);
  double width = 0, height = 0;
  if (std::sscanf(elements.at(0).attributes.at("viewBox").c_str(), "0 0 %lf %lf", &width, &height) != 2)
    return {"no viewBox"};
  const Box frame{0, 0, width + 0.1, height + 0.1};
  const std::vector<Segment> strokes = strokes_of(elements);
  const std::vector<Box> bodies = bodies_of(elements);
  for (const Box& body : bodies)
    if (!frame.holds(body)) faults.push_back("a bar leaves the picture");
  std::vector<std::pair<std::string, Box>> labels;
  for (const Element& element : elements) {
    if (element.name != "text") continue;
    const Box box = box_of(element);
    const auto fault = [&](const std::string& what) { faults.push_back(element.text + " " + what); };
    if (!frame.holds(box)) fault("leaves the picture");
    for (const auto& [text, other] : labels)
      if (box.overlaps(other)) fault("lies on " + text);
    for (const Segment& stroke : strokes)
      if (crosses(stroke, box)) fault("lies on a curve");
    for (const Box& body : bodies)
      if (box.overlaps(body)) fault("lies on a bar or a dot");
    labels.emplace_back(element.text, box);
  }
  return faults;
}

/// Draws of a generator that are the same with every standard library.
class Draws {
 public:
  explicit Draws(std::uint32_t seed) : generator_(seed) {}
  /// 0 to n - 1.
  int below(int n) { return static_cast<int>(generator_() % static_cast<std::uint32_t>(n)); }
  bool one_of(int n) { return below(n) == 0; }
  double between(double low, double high) {
    return low + (high - low) * static_cast<double>(generator_()) / 4294967295.0;
  }

 private:
  std::mt19937 generator_;
};

Run drawn_run(Draws& draw, const std::string& mode, int devices, double scale) {
  Run run;
  run.mode = mode;
  run.devices = devices;
  run.backend = mode == "ddp" && devices > 1 ? "shm" : "";
  const double epoch = scale * (draw.one_of(3) ? 1 : draw.between(0.2, 2));
  for (int i = draw.below(4); i >= 0; --i) run.epoch_s.push_back(epoch * draw.between(1, draw.one_of(4) ? 3 : 1.02));
  run.samples_per_s = 1;
  for (const PartName& part : kStepParts)
    if (!draw.one_of(3)) run.step_us.*part.member = draw.between(1, 1e4 * scale);
  if (draw.one_of(2)) run.step_waiting_us = StepParts{.communication = run.step_us.communication / 2};
  const double last = draw.one_of(2) ? 0.3125 : draw.between(0, 2);
  run.train_loss = {2.3, 1.5, last};
  for (int i = mode == "ddp" ? devices : 1; i > 0; --i) run.peak_memory_mb.push_back(draw.between(50, 5000));
  for (int i = 0; i < devices; ++i) {
    const std::string lane = mode == "ddp" ? "rank " + std::to_string(i) : "cpu:" + std::to_string(i);
    run.median_step.push_back({lane, "forward", draw.between(0, 10), draw.between(50, 9000)});
    if (mode == "ddp") run.median_step.push_back({lane + ", communication", "all_reduce", 20, 500});
  }
  return run;
}

Results drawn_results(std::uint32_t seed) {
  Draws draw(seed);
  Results results = duet_test::made_up();
  results.runs.clear();
  results.settings.epochs = 1 + draw.below(40);
  const double scale = draw.one_of(3) ? draw.between(0.001, 0.1) : draw.between(1, 1000);
  std::vector<int> counts;
  for (int devices = 1; devices <= 16; ++devices)
    if (draw.one_of(3) || devices == 2) counts.push_back(devices);
  for (const std::string mode : {"single", "averaging", "dp", "ddp"}) {
    for (const int devices : mode == "single" ? std::vector<int>{1} : counts) {
      if (draw.one_of(6)) continue;
      results.runs.push_back(drawn_run(draw, mode, devices, scale));
      if (mode == "ddp" && draw.one_of(3)) {
        results.runs.push_back(results.runs.back());
        results.runs.back().backend = "gloo";
      }
    }
  }
  return results;
}

/// Relative luminance of "#rrggbb", as WCAG defines it.
double luminance(const std::string& colour) {
  double sum = 0;
  const double weights[] = {0.2126, 0.7152, 0.0722};
  for (std::size_t i = 0; i < 3; ++i) {
    const double value = std::stoi(colour.substr(1 + 2 * i, 2), nullptr, 16) / 255.0;
    sum += weights[i] * (value <= 0.03928 ? value / 12.92 : std::pow((value + 0.055) / 1.055, 2.4));
  }
  return sum;
}

double contrast(const std::string& a, const std::string& b) {
  const double x = luminance(a), y = luminance(b);
  return (std::max(x, y) + 0.05) / (std::min(x, y) + 0.05);
}

/// The colours of the style sheet from `begin` on, by name.
std::map<std::string, std::string> colours_from(const std::string& style, const std::string& begin) {
  std::map<std::string, std::string> colours;
  const std::size_t from = style.find(begin), to = style.find('}', from);
  REQUIRE(from != std::string::npos);
  for (std::size_t at = style.find(" --", from); at < to; at = style.find(" --", at + 1)) {
    const std::size_t colon = style.find(": #", at);
    colours[style.substr(at + 3, colon - at - 3)] = style.substr(colon + 2, 7);
  }
  return colours;
}

}  // namespace

TEST_CASE("labels of a picture lie on no other, on no curve, and within the picture") {
  using Faults = std::vector<std::string>;
  CHECK(faults_of(epoch_chart(duet_test::made_up())) == Faults{});
  for (std::uint32_t seed = 1; seed <= 200; ++seed) {
    Results results = drawn_results(seed);
    results.weak = seed % 4 == 0;
    INFO("seed " << seed);
    for (const std::string& picture : {epoch_chart(results), loss_chart(results), parts_chart(results),
                                       step_chart(results), memory_chart(results), loss_waterfall(results)})
      CHECK(faults_of(picture) == Faults{});
  }
}

TEST_CASE("labels of the picture of batches lie on no other, on no curve, and within the picture") {
  for (std::uint32_t seed = 1; seed <= 100; ++seed) {
    Draws draw(seed);
    std::vector<Results> batches;
    for (std::int64_t batch = 1 + draw.below(200); batches.size() < 5; batch *= 1 + draw.below(8)) {
      Results& results = batches.emplace_back(duet_test::made_up());
      results.settings.batch = ++batch;
      results.weak = seed % 2 == 0;
      results.runs.resize(1);
      for (const std::string mode : {"averaging", "dp", "ddp"})
        for (const int devices : {1, 2, 4}) {
          Run& run = results.runs.emplace_back(drawn_run(draw, mode, devices, 1));
          if (!draw.one_of(4)) run.speedup = draw.between(0.1, devices);
          if (!draw.one_of(4)) run.speedup_low = run.speedup_high = run.speedup;
          if (run.speedup_high) *run.speedup_high += draw.between(0.001, 0.5);
        }
    }
    INFO("seed " << seed);
    CHECK(faults_of(batch_chart(batches)) == std::vector<std::string>{});
  }
}

TEST_CASE("names of curves stand at the ends of their curves") {
  const std::vector<Element> elements = parse(epoch_chart(duet_test::made_up()));
  std::map<std::string, const Element*> names;
  for (const Element& element : elements)
    if (element.name == "text" && element.css().find("ink-") != std::string::npos) names[element.text] = &element;
  REQUIRE(names.size() == 5);  // with the ideal
  for (const Element& element : elements) {
    if (element.name != "circle" || element.css() != "fill-dp") continue;
    CHECK(std::hypot(names.at("dp")->number("x") - element.number("cx"),
                     names.at("dp")->number("y") - element.number("cy")) < 40);
  }
}

TEST_CASE("a label finds a place beside what is drawn") {
  Svg svg(200, 100, "test");
  LabelPlacer labels({0, 0, 200, 100});
  labels.avoid(Segment{100, 0, 100, 100});
  labels.place(svg, 96, 50, "a", "label");
  labels.place(svg, 96, 50, "b", "label");
  labels.place(svg, 96, 50, "c", "label");
  CHECK(faults_of(svg.str()).empty());
  CHECK(crosses(Segment{0, 0, 10, 10}, Box{4, 4, 6, 6}));
  CHECK_FALSE(crosses(Segment{0, 0, 10, 10}, Box{6, 0, 10, 4}));
  CHECK_FALSE(crosses(Segment{0, 5, 3, 5}, Box{4, 4, 6, 6}));
  CHECK(crosses(Segment{5, 5, 5, 5}, Box{4, 4, 6, 6}));
}

TEST_CASE("letters and lines stand out from the page, light and dark") {
  const std::string style = page_style();
  for (const char* const theme : {":root {", "prefers-color-scheme: dark"}) {
    const auto colours = colours_from(style, theme);
    for (const char* const letters : {"ink", "soft", "bad", "good", "single", "averaging", "dp", "ddp", "copies"}) {
      INFO(theme << ": " << letters << " " << colours.at(letters) << " on " << colours.at("page"));
      CHECK(contrast(colours.at(letters), colours.at("page")) >= 4.5);
    }
    for (const PartName& part : kStepParts) {
      INFO(theme << ": " << part.name << " " << colours.at(part.name) << " on " << colours.at("page"));
      CHECK(contrast(colours.at(part.name), colours.at("page")) >= 2.5);
    }
    CHECK(contrast(colours.at(kWaiting), colours.at("page")) >= 2.5);
  }
}

TEST_CASE("a page that is printed is light") {
  const std::string style = page_style();
  CHECK(style.find("prefers-color-scheme: dark") == style.find("screen and (prefers-color-scheme: dark") + 12);
  CHECK(style.find("prefers-color-scheme", style.find("prefers-color-scheme") + 1) == std::string::npos);
}
