#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::api::recipe {

/// Finds the first of several stop strings in a text that arrives in pieces (an Aho-Corasick
/// automaton). Holds back only what may be the beginning of a stop string, however the text is cut:
/// constant amortised work per byte, memory bounded by the longest stop string.
class StopMatcher {
 public:
  /// None may be empty.
  explicit StopMatcher(const std::vector<std::string>& stops);

  /// Appends to `out` the text that can no longer belong to a match. True once a stop string is
  /// complete: text before it has been appended, the rest of the stream is to be discarded. Of stop
  /// strings that end at the same byte the longest counts.
  bool push(std::string_view text, std::string& out);

  /// Appends what was held back; the stream is over.
  void finish(std::string& out);

  /// The stop string found; empty before.
  const std::string& matched() const { return matched_; }

 private:
  struct Node {
    std::map<char, std::size_t> next;
    std::size_t fallback = 0;  ///< node of the longest proper suffix that begins a stop string
    std::size_t depth = 0;
    std::size_t match_length = 0;  ///< longest stop string that ends here; 0 = none
  };
  void build_fallbacks();

  std::vector<Node> nodes_;
  std::size_t state_ = 0;
  std::string held_;  // the last nodes_[state_].depth bytes
  std::string matched_;
};

}  // namespace millrace::api::recipe
