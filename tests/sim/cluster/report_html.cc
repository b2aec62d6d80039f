// The HTML report: plots are SVG written here, so that the page needs nothing else.

#include <algorithm>
#include <array>
#include <cmath>

#include "common/str_cat.h"
#include "common/svg/svg.h"
#include "tests/sim/cluster/summary.h"

namespace millrace::sim {
namespace {

using common::svg::escaped;
using common::svg::Frame;
using common::svg::Grid;
using common::svg::number;
using common::svg::Tick;

constexpr Frame kFrame{.width = 720,
                       .height = 300,
                       .left = 60,
                       .right = 10,
                       .top = 10,
                       .bottom = 40,
                       .x_label_gap = 16,
                       .y_label_gap = 6};
constexpr std::array<std::string_view, 8> kColours = {"#1b6ca8", "#c8553d", "#3a7d44", "#8f4899",
                                                      "#b8860b", "#5c6b73", "#d1495b", "#00798c"};

struct Point {
  double x = 0;
  double y = 0;
};
struct Line {
  std::string name;
  std::vector<Point> points;
};

/// The distribution of values as a line of 200 points from the lowest to the highest.
std::vector<Point> distribution(std::vector<double> values) {
  std::vector<Point> points;
  if (values.empty()) return points;
  std::sort(values.begin(), values.end());
  constexpr std::size_t kPoints = 200;
  for (std::size_t i = 0; i <= kPoints; ++i) {
    const std::size_t index = (values.size() - 1) * i / kPoints;
    points.push_back({values[index], 100.0 * static_cast<double>(i) / kPoints});
  }
  return points;
}

struct Axes {
  std::string title;
  std::string x_name;
  std::string y_name;
  double x_most = 1;
  double y_most = 1;
};

std::string axes_svg(const Axes& axes) {
  std::vector<Tick> x;
  std::vector<Tick> y;
  for (int i = 0; i <= 4; ++i) {
    const double share = i / 4.0;
    x.push_back({share, number(share * axes.x_most)});
    y.push_back({share, number(share * axes.y_most)});
  }
  return str_cat(common::svg::axes(kFrame, x, y, Grid::kHorizontal), "<text x='",
                 number(kFrame.width / 2), "' y='", number(kFrame.height - 6),
                 "' text-anchor='middle'>", axes.x_name, "</text><text x='",
                 number(kFrame.left + 4), "' y='", number(kFrame.top + 10), "'>", axes.y_name,
                 "</text>");
}

std::string plot(const Axes& axes, const std::vector<Line>& lines) {
  std::string svg = str_cat("<h2>", axes.title, "</h2><svg viewBox='0 0 ", number(kFrame.width),
                            " ", number(kFrame.height), "'>", axes_svg(axes));
  std::string legend = "<p>";
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string_view colour = kColours[i % kColours.size()];
    std::string path;
    for (const Point& point : lines[i].points) {
      const double x = kFrame.x(std::min(point.x / axes.x_most, 1.0));
      const double y = kFrame.y(std::min(point.y / axes.y_most, 1.0));
      path += str_cat(path.empty() ? "" : " ", number(x), ",", number(y));
    }
    svg += str_cat("<polyline fill='none' stroke-width='2' stroke='", colour, "' points='", path,
                   "'/>");
    legend +=
        str_cat("<span style='color:", colour, "'>&#9632; ", escaped(lines[i].name), "</span> ");
  }
  return str_cat(svg, "</svg>", legend, "</p>\n");
}

template <typename Value>
std::vector<Line> distributions(const Scenario& scenario, std::span<const ReportedRun> runs,
                                Value value) {
  std::vector<Line> lines;
  for (const ReportedRun& run : runs) {
    std::vector<double> values;
    for (const RequestOutcome& request : run.outcome.requests) {
      const double arrived_s = static_cast<double>(request.arrived) * 1e-9;
      if (request.ended < 0 || arrived_s < scenario.warmup_s) continue;
      values.push_back(value(request));
    }
    lines.push_back({run.summary.policy, distribution(std::move(values))});
  }
  return lines;
}

std::vector<Line> waiting_lines(std::span<const ReportedRun> runs) {
  std::vector<Line> lines;
  for (const ReportedRun& run : runs) {
    Line line{run.summary.policy, {}};
    for (const Sample& sample : run.outcome.samples) {
      line.points.push_back({sample.at_s, static_cast<double>(sample.waiting)});
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

double largest(const std::vector<Line>& lines, double Point::*axis) {
  double most = 1e-9;
  for (const Line& line : lines) {
    for (const Point& point : line.points) most = std::max(most, point.*axis);
  }
  return most;
}

std::string table_html(std::span<const ReportedRun> runs) {
  std::string rows;
  for (const ReportedRun& run : runs) {
    const Summary& s = run.summary;
    rows += str_cat("<tr><td>", escaped(s.policy), "</td><td>", number(s.ttft_s.p50), "</td><td>",
                    number(s.ttft_s.p99), "</td><td>", number(s.tpot_ms.p50), "</td><td>",
                    number(s.tpot_ms.p99), "</td><td>", number(100 * s.within_limits), "</td><td>",
                    number(s.goodput_per_s), "</td><td>", number(s.prefill_max_over_mean),
                    "</td><td>", number(s.decode_max_over_mean), "</td><td>",
                    number(100 * s.prefill_utilisation), "</td></tr>\n");
  }
  return str_cat(
      "<table><tr><th>policy</th><th>TTFT p50 s</th><th>p99 s</th><th>TPOT p50 ms</th><th>p99 "
      "ms</th><th>within limits %</th><th>goodput /s</th><th>prefill max/mean</th><th>decode "
      "max/mean</th><th>prefill busy %</th></tr>\n",
      rows, "</table>\n");
}

constexpr std::string_view kStyle =
    "body{font:15px/1.5 system-ui,sans-serif;max-width:860px;margin:2em auto;color:#222}"
    "svg{width:100%;font-size:11px}.grid{stroke:#ddd}table{border-collapse:collapse;width:100%}"
    "td,th{padding:.3em .5em;border-bottom:1px solid #ddd;text-align:right}"
    "td:first-child,th:first-child{text-align:left}";

}  // namespace

std::string to_html(const Scenario& scenario, std::uint64_t seed,
                    std::span<const ReportedRun> runs) {
  const auto ttft =
      distributions(scenario, runs, [](const RequestOutcome& r) { return r.ttft_s(); });
  const auto tpot =
      distributions(scenario, runs, [](const RequestOutcome& r) { return r.tpot_ms(); });
  const auto waiting = waiting_lines(runs);
  double ttft_most = 1e-9;
  for (const ReportedRun& run : runs) ttft_most = std::max(ttft_most, run.summary.ttft_s.p99);
  return str_cat(
      "<!doctype html><html lang='en'><meta charset='utf-8'><title>", escaped(scenario.name),
      "</title><style>", kStyle, "</style><h1>", escaped(scenario.name),
      "</h1><p>Simulated with seed ", seed, "; ", scenario.prefill_instances, " x ",
      scenario.prefill_ranks, " prefill ranks, ", scenario.decode_instances, " x ",
      scenario.decode_ranks, " decode ranks. Limits: TTFT ", scenario.ttft_limit_s, " s, TPOT ",
      scenario.tpot_limit_ms, " ms.</p>\n", table_html(runs),
      plot({"Time to first token", "seconds", "% of requests", ttft_most, 100}, ttft),
      plot(
          {"Time per output token", "milliseconds", "% of requests", largest(tpot, &Point::x), 100},
          tpot),
      plot({"Requests without a first token", "virtual seconds", "requests",
            largest(waiting, &Point::x), largest(waiting, &Point::y)},
           waiting),
      "</html>\n");
}

}  // namespace millrace::sim
