#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::api::recipe {

/// Finds the first of several stop strings in a text that arrives in pieces (an Aho-Corasick
/// automaton). Holds back only what may be the beginning of a stop string, however the text is cut:
/// constant amortised work per byte, memory bounded by the longest stop string. Copies share the
/// automaton.
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

  /// Forgets the text so far.
  void restart();

  /// The stop string found; empty before.
  const std::string& matched() const { return matched_; }

 private:
  struct Automaton;

  std::shared_ptr<const Automaton> automaton_;
  std::size_t state_ = 0;  // a node of the automaton
  std::string held_;       // the bytes that led there
  std::string matched_;
};

}  // namespace millrace::api::recipe
