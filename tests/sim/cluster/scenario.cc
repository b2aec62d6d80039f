#include "tests/sim/cluster/scenario.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::sim {
namespace {

using Switch = std::pair<std::string_view, bool PolicyChoice::*>;
constexpr std::array<Switch, 4> kSwitches = {
    {{"no_buckets", &PolicyChoice::has_buckets},
     {"no_pull", &PolicyChoice::has_pull},
     {"no_rank_choice", &PolicyChoice::has_rank_choice},
     {"no_variable_chunk", &PolicyChoice::has_variable_chunk}}};

absl::Status switch_off(PolicyChoice& choice, std::string_view name) {
  std::string known;
  for (const auto& [switch_name, layer] : kSwitches) {
    if (switch_name == name) {
      choice.*layer = false;
      return absl::OkStatus();
    }
    known.append(known.empty() ? "" : ", ").append(switch_name);
  }
  return absl::InvalidArgumentError(
      str_cat("\"", name, "\" is no layer of millrace to switch off; there are ", known));
}

}  // namespace

std::string PolicyChoice::name() const {
  std::string name(to_string(policy));
  char separator = ':';
  for (const auto& [switch_name, layer] : kSwitches) {
    if (this->*layer || policy != dataplane::routing::Policy::kMillrace) continue;
    name.push_back(separator);
    name.append(switch_name);
    separator = ',';
  }
  return name;
}

absl::StatusOr<PolicyChoice> parse_policy_choice(std::string_view text) {
  const std::size_t colon = text.find(':');
  PolicyChoice choice;
  ASSIGN_OR_RETURN(choice.policy, dataplane::routing::parse_policy(text.substr(0, colon)));
  if (colon == std::string_view::npos) return choice;
  if (choice.policy != dataplane::routing::Policy::kMillrace) {
    return absl::InvalidArgumentError(
        str_cat("only millrace has layers to switch off, not ", to_string(choice.policy)));
  }
  std::string_view rest = text.substr(colon + 1);
  while (true) {
    const std::size_t comma = rest.find(',');
    RETURN_IF_ERROR(switch_off(choice, rest.substr(0, comma)));
    if (comma == std::string_view::npos) return choice;
    rest.remove_prefix(comma + 1);
  }
}

Scenario scale_load(const Scenario& scenario, double factor) {
  Scenario scaled = scenario;
  ArrivalSettings& arrivals = scaled.arrivals;
  arrivals.rate *= factor;
  const double total = static_cast<double>(arrivals.copies) * arrivals.speed * factor;
  const double copies = std::round(static_cast<double>(arrivals.copies) * factor);
  arrivals.copies = std::max<std::int64_t>(1, static_cast<std::int64_t>(copies));
  arrivals.speed = total / static_cast<double>(arrivals.copies);
  return scaled;
}

}  // namespace millrace::sim
