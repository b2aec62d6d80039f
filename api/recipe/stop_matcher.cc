#include "api/recipe/stop_matcher.h"

#include <algorithm>
#include <deque>

#include "common/check.h"

namespace millrace::api::recipe {

StopMatcher::StopMatcher(const std::vector<std::string>& stops) : nodes_(1) {
  for (const std::string& stop : stops) {
    CHECK(!stop.empty());
    std::size_t node = 0;
    for (char c : stop) {
      const auto [it, is_new] = nodes_[node].next.emplace(c, nodes_.size());
      const std::size_t child = it->second;
      if (is_new) {
        const std::size_t depth = nodes_[node].depth + 1;
        nodes_.emplace_back().depth = depth;
      }
      node = child;
    }
    nodes_[node].match_length = stop.size();
  }
  build_fallbacks();
}

void StopMatcher::build_fallbacks() {
  // Breadth first, so that a node's fallback, which is less deep, is final before it is read.
  std::deque<std::size_t> queue;
  for (const auto& [c, child] : nodes_[0].next) queue.push_back(child);
  while (!queue.empty()) {
    const std::size_t node = queue.front();
    queue.pop_front();
    for (const auto& [c, child] : nodes_[node].next) {
      std::size_t suffix = nodes_[node].fallback;
      while (suffix != 0 && !nodes_[suffix].next.contains(c)) suffix = nodes_[suffix].fallback;
      const auto it = nodes_[suffix].next.find(c);
      nodes_[child].fallback = it == nodes_[suffix].next.end() ? 0 : it->second;
      queue.push_back(child);
    }
    if (nodes_[node].match_length == 0) {
      nodes_[node].match_length = nodes_[nodes_[node].fallback].match_length;
    }
  }
}

bool StopMatcher::push(std::string_view text, std::string& out) {
  if (nodes_.size() == 1) {
    out.append(text);
    return false;
  }
  for (char c : text) {
    while (state_ != 0 && !nodes_[state_].next.contains(c)) state_ = nodes_[state_].fallback;
    if (const auto it = nodes_[state_].next.find(c); it != nodes_[state_].next.end()) {
      state_ = it->second;
    }
    held_.push_back(c);
    if (const std::size_t length = nodes_[state_].match_length; length > 0) {
      out.append(held_, 0, held_.size() - length);
      matched_ = held_.substr(held_.size() - length);
      held_.clear();
      return true;
    }
    const std::size_t free = held_.size() - nodes_[state_].depth;
    out.append(held_, 0, free);
    held_.erase(0, free);
  }
  return false;
}

void StopMatcher::finish(std::string& out) {
  out.append(held_);
  held_.clear();
  state_ = 0;
}

}  // namespace millrace::api::recipe
