#include "dataplane/fit/plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>
#include <vector>

#include "common/svg/svg.h"

namespace millrace::dataplane::fit {
namespace {

namespace svg = common::svg;

constexpr svg::Frame kFrame{
    .width = 640, .height = 480, .left = 70, .right = 20, .top = 40, .bottom = 50};

/// Measured and predicted, in milliseconds.
using Points = std::vector<std::pair<double, double>>;

/// Logarithmic axes over whole decades, the same for both directions.
struct Axes {
  double low = 0;  // exponents of 10
  double high = 0;

  double share(double ms) const { return (std::log10(ms) - low) / (high - low); }
  double x(double ms) const { return kFrame.x(share(ms)); }
  double y(double ms) const { return kFrame.y(share(ms)); }
};

template <typename... Values>
std::string format(const char* pattern, Values... values) {
  char text[256];
  const int length = std::snprintf(text, sizeof text, pattern, values...);
  return {text, static_cast<std::size_t>(std::clamp(length, 0, int{sizeof text} - 1))};
}

Axes axes_for(const Points& a, const Points& b) {
  double low = 1e300;
  double high = 0;
  for (const Points* points : {&a, &b}) {
    for (const auto& [measured, predicted] : *points) {
      low = std::min({low, measured, std::max(predicted, measured / 100)});
      high = std::max({high, measured, predicted});
    }
  }
  return {std::floor(std::log10(low)),
          std::max(std::ceil(std::log10(high)), std::floor(std::log10(low)) + 1)};
}

std::string grid(const Axes& axes) {
  std::vector<svg::Tick> ticks;
  for (double exponent = axes.low; exponent <= axes.high; ++exponent) {
    const double ms = std::pow(10, exponent);
    ticks.push_back({axes.share(ms), format("%g", ms)});
  }
  return svg::axes(kFrame, ticks, ticks, svg::Grid::kBoth) +
         format("<path class=\"diagonal\" d=\"M%.1f %.1fL%.1f %.1f\"/>\n", kFrame.x(0), kFrame.y(0),
                kFrame.x(1), kFrame.y(1));
}

std::string dots(const Axes& axes, const Points& points, const char* colour) {
  std::string circles = format("<g fill=\"%s\" fill-opacity=\"0.35\">\n", colour);
  const double least = std::pow(10, axes.low);
  for (const auto& [measured, predicted] : points) {
    circles += format("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2\"/>\n", axes.x(measured),
                      axes.y(std::max(predicted, least)));
  }
  return circles + "</g>\n";
}

}  // namespace

std::string draw_fit(const Measured& measured, const cost::CostModel& prefill,
                     const cost::DecodeCostModel& decode, const std::string& title) {
  Points prefill_points;
  prefill_points.reserve(measured.prefill.size());
  for (const MeasuredPrefill& step : measured.prefill) {
    prefill_points.emplace_back(step.sample.ns * 1e-6,
                                cost::predicted_ns(prefill, step.sample) * 1e-6);
  }
  Points decode_points;
  decode_points.reserve(measured.decode.size());
  for (const cost::DecodeSample& step : measured.decode) {
    decode_points.emplace_back(step.ns * 1e-6, cost::predicted_ns(decode, step) * 1e-6);
  }
  const Axes axes = axes_for(prefill_points, decode_points);
  std::string drawing = format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n",
      kFrame.width, kFrame.height);
  drawing += "<style>.grid{stroke:#ddd;fill:none}.diagonal{stroke:#444;fill:none}</style>\n";
  drawing +=
      format("<rect width=\"%g\" height=\"%g\" fill=\"white\"/>\n", kFrame.width, kFrame.height);
  drawing += format("<text x=\"%g\" y=\"20\" font-size=\"14\">", kFrame.left) +
             svg::escaped(title) + "</text>\n";
  drawing += grid(axes);
  drawing += dots(axes, prefill_points, "#1f6fb4") + dots(axes, decode_points, "#d1680f");
  drawing += format("<text x=\"%g\" y=\"%g\" text-anchor=\"middle\">measured, ms a step</text>\n",
                    (kFrame.left + kFrame.width - kFrame.right) / 2, kFrame.height - 12);
  drawing += format(
      "<text transform=\"translate(18 %g) rotate(-90)\" text-anchor=\"middle\">predicted, "
      "ms</text>\n",
      (kFrame.top + kFrame.height - kFrame.bottom) / 2);
  drawing += format("<text x=\"%g\" y=\"%g\" fill=\"#1f6fb4\">prefill</text>\n", kFrame.left + 12,
                    kFrame.top + 18);
  drawing += format("<text x=\"%g\" y=\"%g\" fill=\"#d1680f\">decode</text>\n", kFrame.left + 12,
                    kFrame.top + 34);
  return drawing + "</svg>\n";
}

}  // namespace millrace::dataplane::fit
