#pragma once

#include <span>
#include <string>
#include <string_view>

namespace millrace::common::svg {

/// Where the area of a plot lies in its picture, in user units of the SVG.
struct Frame {
  double width = 640;
  double height = 480;
  double left = 70;  ///< margins
  double right = 20;
  double top = 40;
  double bottom = 50;
  double x_label_gap = 18;  ///< from the area down to the base line of its labels
  double y_label_gap = 8;   ///< from the area left to the end of its labels

  /// Positions of shares of the area, 0 at its lower left corner.
  double x(double share) const { return left + share * (width - left - right); }
  double y(double share) const { return height - bottom - share * (height - top - bottom); }
};

/// A mark of an axis: where, as a share of the area, and what is written there.
struct Tick {
  double share = 0;
  std::string label;
};

enum class Grid { kHorizontal, kBoth };

/// Grid lines through the ticks, of class "grid" (the picture's style says how they look), and the
/// labels: under the area, and left of it.
std::string axes(const Frame& frame, std::span<const Tick> x, std::span<const Tick> y, Grid grid);

/// A number with four digits, as coordinates and labels are written.
std::string number(double value);

/// Text that may stand between tags and in quoted attributes.
std::string escaped(std::string_view text);

}  // namespace millrace::common::svg
