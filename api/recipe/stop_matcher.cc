#include "api/recipe/stop_matcher.h"

#include <algorithm>
#include <bitset>
#include <deque>
#include <utility>

#include "common/check.h"

namespace millrace::api::recipe {
namespace {

constexpr std::size_t kNowhere = static_cast<std::size_t>(-1);

struct Node {
  std::vector<std::pair<char, std::size_t>> next;
  std::size_t fallback = 0;  ///< node of the longest proper suffix that begins a stop string
  std::size_t depth = 0;
  std::size_t match_length = 0;  ///< longest stop string that ends here; 0 = none

  std::size_t child(char c) const {
    for (const auto& [byte, node] : next) {
      if (byte == c) return node;
    }
    return kNowhere;
  }
};

}  // namespace

struct StopMatcher::Automaton {
  explicit Automaton(const std::vector<std::string>& stops) : nodes(1) {
    for (const std::string& stop : stops) {
      CHECK(!stop.empty());
      add(stop);
      firsts.set(static_cast<unsigned char>(stop.front()));
    }
    build_fallbacks();
  }

  /// The node behind a byte.
  std::size_t step(std::size_t node, char c) const {
    while (true) {
      if (const std::size_t child = nodes[node].child(c); child != kNowhere) return child;
      if (node == 0) return 0;
      node = nodes[node].fallback;
    }
  }

  /// The number of bytes at the beginning that begin no stop string.
  std::size_t free_prefix(std::string_view text) const {
    const auto is_first = [this](char c) { return firsts[static_cast<unsigned char>(c)]; };
    return static_cast<std::size_t>(std::find_if(text.begin(), text.end(), is_first) -
                                    text.begin());
  }

  std::vector<Node> nodes;
  std::bitset<256> firsts;  // bytes that begin a stop string

 private:
  void add(const std::string& stop) {
    std::size_t node = 0;
    for (const char c : stop) {
      std::size_t child = nodes[node].child(c);
      if (child == kNowhere) {
        child = nodes.size();
        nodes[node].next.emplace_back(c, child);
        const std::size_t depth = nodes[node].depth + 1;
        nodes.emplace_back().depth = depth;
      }
      node = child;
    }
    nodes[node].match_length = stop.size();
  }

  void build_fallbacks() {
    // Breadth first, so that a node's fallback, which is less deep, is final before it is read.
    std::deque<std::size_t> queue;
    for (const auto& [c, child] : nodes[0].next) queue.push_back(child);
    while (!queue.empty()) {
      Node& node = nodes[queue.front()];
      queue.pop_front();
      for (const auto& [c, child] : node.next) {
        nodes[child].fallback = step(node.fallback, c);
        queue.push_back(child);
      }
      if (node.match_length == 0) node.match_length = nodes[node.fallback].match_length;
    }
  }
};

StopMatcher::StopMatcher(const std::vector<std::string>& stops)
    : automaton_(std::make_shared<const Automaton>(stops)) {}

bool StopMatcher::push(std::string_view text, std::string& out) {
  while (!text.empty()) {
    if (state_ == 0) {
      const std::size_t free = automaton_->free_prefix(text);
      out.append(text.substr(0, free));
      text.remove_prefix(free);
      if (text.empty()) return false;
    }
    state_ = automaton_->step(state_, text.front());
    held_.push_back(text.front());
    text.remove_prefix(1);
    const Node& node = automaton_->nodes[state_];
    if (node.match_length > 0) {
      out.append(held_, 0, held_.size() - node.match_length);
      matched_ = held_.substr(held_.size() - node.match_length);
      held_.clear();
      return true;
    }
    const std::size_t free = held_.size() - node.depth;
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

void StopMatcher::restart() {
  state_ = 0;
  held_.clear();
  matched_.clear();
}

}  // namespace millrace::api::recipe
