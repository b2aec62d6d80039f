#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/recipe/prompt.h"

namespace millrace::api::recipe {

/// Collects the segments of a prompt; neighbouring texts become one.
class SegmentList {
 public:
  void control(std::string_view spelling) { segments_.push_back({true, std::string(spelling)}); }

  void text(std::string_view text) {
    if (text.empty()) return;
    if (segments_.empty() || segments_.back().is_control) segments_.push_back({});
    segments_.back().text.append(text);
  }

  std::vector<Segment> take() { return std::move(segments_); }

 private:
  std::vector<Segment> segments_;
};

}  // namespace millrace::api::recipe
