#include "storage/store/node_scores.h"

#include <algorithm>

namespace millrace::storage::store {

NodeScores::Node& NodeScores::node_of(std::string_view id) {
  const auto found = nodes_.find(id);
  if (found != nodes_.end()) return found->second;
  return nodes_.emplace(std::string(id), Node{}).first->second;
}

void NodeScores::on_answer(std::string_view id, std::chrono::nanoseconds latency, bool is_late) {
  Node& node = node_of(id);
  const std::chrono::nanoseconds sample = std::min(latency, 2 * deadline_of(node));
  if (!node.has_answered) {
    node.has_answered = true;
    node.mean = sample;
    node.deviation = sample / 2;
  } else {
    const std::chrono::nanoseconds error = sample - node.mean;
    node.deviation += (std::max(error, -error) - node.deviation) / 4;
    node.mean += error / 8;
  }
  if (is_late) return;
  node.misses = 0;
  node.on_probation = false;
}

void NodeScores::on_miss(std::string_view id, TimePoint now) {
  Node& node = node_of(id);
  ++node.misses;
  if (node.on_probation || node.misses < settings_.misses_to_probation) return;
  node.on_probation = true;
  node.period = settings_.first_probation;
  node.next_probe = now + node.period;
}

std::chrono::nanoseconds NodeScores::deadline_of(const Node& node) const {
  if (!node.has_answered) return settings_.first_deadline;
  return std::clamp<std::chrono::nanoseconds>(
      node.mean + 4 * node.deviation, settings_.shortest_deadline, settings_.longest_deadline);
}

std::chrono::nanoseconds NodeScores::hedge_deadline(std::string_view id) const {
  const auto found = nodes_.find(id);
  return deadline_of(found == nodes_.end() ? Node{} : found->second);
}

bool NodeScores::is_on_probation(std::string_view id) const {
  const auto found = nodes_.find(id);
  return found != nodes_.end() && found->second.on_probation;
}

bool NodeScores::take_probe(std::string_view id, TimePoint now) {
  const auto found = nodes_.find(id);
  if (found == nodes_.end()) return false;
  Node& node = found->second;
  if (!node.on_probation || now < node.next_probe) return false;
  // Assumes the worst; an answer in time clears it.
  node.period = std::min(2 * node.period, settings_.longest_probation);
  node.next_probe = now + node.period;
  return true;
}

int NodeScores::nodes_on_probation() const {
  return static_cast<int>(std::count_if(
      nodes_.begin(), nodes_.end(), [](const auto& entry) { return entry.second.on_probation; }));
}

}  // namespace millrace::storage::store
