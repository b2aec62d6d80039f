#include "common/svg/svg.h"

#include <array>
#include <cstdio>

#include "common/str_cat.h"

namespace millrace::common::svg {
namespace {

std::string line(double x1, double y1, double x2, double y2) {
  return str_cat("<line class='grid' x1='", number(x1), "' y1='", number(y1), "' x2='", number(x2),
                 "' y2='", number(y2), "'/>");
}

std::string label(double x, double y, std::string_view anchor, std::string_view text) {
  return str_cat("<text x='", number(x), "' y='", number(y), "' text-anchor='", anchor, "'>",
                 escaped(text), "</text>\n");
}

}  // namespace

std::string axes(const Frame& frame, std::span<const Tick> x, std::span<const Tick> y, Grid grid) {
  // Half of a digit's height brings the middle of a label to its line.
  constexpr double kHalfDigit = 4;
  std::string svg;
  for (const Tick& tick : x) {
    const double at = frame.x(tick.share);
    if (grid == Grid::kBoth) svg += line(at, frame.y(0), at, frame.y(1));
    svg += label(at, frame.y(0) + frame.x_label_gap, "middle", tick.label);
  }
  for (const Tick& tick : y) {
    const double at = frame.y(tick.share);
    svg += line(frame.x(0), at, frame.x(1), at);
    svg += label(frame.x(0) - frame.y_label_gap, at + kHalfDigit, "end", tick.label);
  }
  return svg;
}

std::string number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.4g", value);
  return text.data();
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

}  // namespace millrace::common::svg
