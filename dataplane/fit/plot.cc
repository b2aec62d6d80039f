#include "dataplane/fit/plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>
#include <vector>

namespace millrace::dataplane::fit {
namespace {

constexpr double kWidth = 640;
constexpr double kHeight = 480;
constexpr double kLeft = 70;
constexpr double kRight = 20;
constexpr double kTop = 40;
constexpr double kBottom = 50;

/// Measured and predicted, in milliseconds.
using Points = std::vector<std::pair<double, double>>;

/// Logarithmic axes over whole decades, the same for both directions.
struct Axes {
  double low = 0;  // exponents of 10
  double high = 0;

  double share(double ms) const { return (std::log10(ms) - low) / (high - low); }
  double x(double ms) const { return kLeft + share(ms) * (kWidth - kLeft - kRight); }
  double y(double ms) const { return kHeight - kBottom - share(ms) * (kHeight - kTop - kBottom); }
};

template <typename... Values>
std::string format(const char* pattern, Values... values) {
  char text[256];
  const int length = std::snprintf(text, sizeof text, pattern, values...);
  return {text, static_cast<std::size_t>(std::clamp(length, 0, int{sizeof text} - 1))};
}

std::string escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '&') {
      out += "&amp;";
    } else {
      out += c;
    }
  }
  return out;
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
  std::string svg;
  for (double exponent = axes.low; exponent <= axes.high; ++exponent) {
    const double ms = std::pow(10, exponent);
    svg += format("<path class=\"grid\" d=\"M%.1f %.1fV%.1fM%.1f %.1fH%.1f\"/>\n", axes.x(ms), kTop,
                  kHeight - kBottom, kLeft, axes.y(ms), kWidth - kRight);
    svg += format("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%g</text>\n", axes.x(ms),
                  kHeight - kBottom + 18, ms);
    svg += format("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n", kLeft - 8,
                  axes.y(ms) + 4, ms);
  }
  const double low = std::pow(10, axes.low);
  const double high = std::pow(10, axes.high);
  svg += format("<path class=\"diagonal\" d=\"M%.1f %.1fL%.1f %.1f\"/>\n", axes.x(low), axes.y(low),
                axes.x(high), axes.y(high));
  return svg;
}

std::string dots(const Axes& axes, const Points& points, const char* colour) {
  std::string svg = format("<g fill=\"%s\" fill-opacity=\"0.35\">\n", colour);
  const double least = std::pow(10, axes.low);
  for (const auto& [measured, predicted] : points) {
    svg += format("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2\"/>\n", axes.x(measured),
                  axes.y(std::max(predicted, least)));
  }
  return svg + "</g>\n";
}

}  // namespace

std::string draw_fit(const Measured& measured, const cost::CostModel& prefill,
                     const cost::DecodeCostModel& decode, const std::string& title) {
  Points prefill_points;
  prefill_points.reserve(measured.prefill.size());
  for (const MeasuredPrefill& step : measured.prefill) {
    const cost::PrefillSample& s = step.sample;
    const double predicted = prefill.quadratic * s.rows_squared + prefill.cross * s.rows_by_cached +
                             prefill.linear * s.rows + prefill.fixed * s.chunks;
    prefill_points.emplace_back(s.ns * 1e-6, predicted * 1e-6);
  }
  Points decode_points;
  decode_points.reserve(measured.decode.size());
  for (const cost::DecodeSample& s : measured.decode) {
    const double predicted =
        decode.fixed + decode.per_request * s.batch + decode.per_kv_token * s.kv_tokens;
    decode_points.emplace_back(s.ns * 1e-6, predicted * 1e-6);
  }
  const Axes axes = axes_for(prefill_points, decode_points);
  std::string svg = format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n",
      kWidth, kHeight);
  svg += "<style>.grid{stroke:#ddd;fill:none}.diagonal{stroke:#444;fill:none}</style>\n";
  svg += format("<rect width=\"%g\" height=\"%g\" fill=\"white\"/>\n", kWidth, kHeight);
  svg += format("<text x=\"%g\" y=\"20\" font-size=\"14\">", kLeft) + escape(title) + "</text>\n";
  svg += grid(axes);
  svg += dots(axes, prefill_points, "#1f6fb4") + dots(axes, decode_points, "#d1680f");
  svg += format("<text x=\"%g\" y=\"%g\" text-anchor=\"middle\">measured, ms a step</text>\n",
                (kLeft + kWidth - kRight) / 2, kHeight - 12);
  svg += format(
      "<text transform=\"translate(18 %g) rotate(-90)\" text-anchor=\"middle\">predicted, "
      "ms</text>\n",
      (kTop + kHeight - kBottom) / 2);
  svg += format("<text x=\"%g\" y=\"%g\" fill=\"#1f6fb4\">prefill</text>\n", kLeft + 12, kTop + 18);
  svg += format("<text x=\"%g\" y=\"%g\" fill=\"#d1680f\">decode</text>\n", kLeft + 12, kTop + 34);
  return svg + "</svg>\n";
}

}  // namespace millrace::dataplane::fit
