#pragma once

#include <chrono>
#include <map>
#include <string>
#include <string_view>

#include "common/time_point.h"

namespace millrace::storage::store {

struct NodeScoreSettings {
  /// The hedge deadline of a node that has not answered yet, and the limits of all others.
  std::chrono::microseconds first_deadline{50000};
  std::chrono::microseconds shortest_deadline{2000};
  std::chrono::microseconds longest_deadline{1000000};
  /// So many deadlines missed one after the other put a node on probation.
  int misses_to_probation = 3;
  /// Time until it is tried again; doubled by each try that fails.
  std::chrono::milliseconds first_probation{1000};
  std::chrono::milliseconds longest_probation{30000};
};

/// How quickly each node answers, and which of them are better not asked. Pure; one thread.
///
/// The hedge deadline is mean + 4 deviations of a node's answers, both moving averages (Jacobson's
/// estimator of RFC 6298, with its gains). An answer behind its deadline counts as twice the
/// deadline at most: a node that is frozen for a minute and goes on leaves no minute in the mean,
/// while a cluster that slows down as a whole is followed within a few answers.
class NodeScores {
 public:
  explicit NodeScores(const NodeScoreSettings& settings) : settings_(settings) {}

  /// An answer, whatever it says. `is_late`: its deadline had been reported as missed.
  void on_answer(std::string_view node, std::chrono::nanoseconds latency, bool is_late);
  /// A deadline passed, or the node cannot be reached.
  void on_miss(std::string_view node, TimePoint now);

  std::chrono::nanoseconds hedge_deadline(std::string_view node) const;

  /// Counts as missing: it is asked only when a read cannot do without it, or as a probe.
  bool is_on_probation(std::string_view node) const;
  /// True at most once a probation period: whoever gets it sends the node one request that nobody
  /// waits for. An answer in time ends the probation.
  bool take_probe(std::string_view node, TimePoint now);

  int nodes_on_probation() const;
  /// Forgets nodes that the map does not have any more.
  template <typename IsKnown>
  void retain(IsKnown is_known) {
    std::erase_if(nodes_, [&](const auto& entry) { return !is_known(entry.first); });
  }

 private:
  struct Node {
    bool has_answered = false;
    std::chrono::nanoseconds mean{0};
    std::chrono::nanoseconds deviation{0};
    int misses = 0;
    bool on_probation = false;
    TimePoint next_probe{};
    std::chrono::milliseconds period{0};
  };
  std::chrono::nanoseconds deadline_of(const Node& node) const;
  Node& node_of(std::string_view id);

  NodeScoreSettings settings_;
  std::map<std::string, Node, std::less<>> nodes_;
};

}  // namespace millrace::storage::store
