#include "controller/buckets/demand.h"

#include <algorithm>
#include <limits>

#include "common/str_cat.h"

namespace millrace::controller::buckets {
namespace {

using api::admin::kDemandModulusNs;

std::uint64_t saturating_sum(std::uint64_t a, std::uint64_t b) {
  return a > std::numeric_limits<std::uint64_t>::max() - b
             ? std::numeric_limits<std::uint64_t>::max()
             : a + b;
}

/// What was counted between two sums. More than half of the modulus is a sum that fell: a process
/// began anew without saying so, and what came in between is not known.
std::uint64_t counted_between(std::uint64_t before, std::uint64_t now) {
  const std::uint64_t difference = (now - before) % kDemandModulusNs;
  return difference < kDemandModulusNs / 2 ? difference : 0;
}

}  // namespace

DemandBook::DemandBook(int bucket_count)
    : bucket_count_(bucket_count), round_(static_cast<std::size_t>(bucket_count), 0) {}

absl::Status DemandBook::add(std::string_view entrypoint_id,
                             const api::admin::EntrypointReport& report) {
  if (report.demand_ns.size() != round_.size()) {
    return absl::InvalidArgumentError(str_cat("\"demand_ns\" is of ", report.demand_ns.size(),
                                              " buckets; there are ", bucket_count_));
  }
  const auto known = entries_.find(entrypoint_id);
  Demand before(round_.size(), 0);
  if (known == entries_.end()) {
    if (report.sequence > kYoungSequence) before = report.demand_ns;
  } else if (report.incarnation == known->second.incarnation) {
    // One that is late or doubled is a sign of life all the same.
    known->second.silent_rounds = 0;
    if (report.sequence <= known->second.sequence) return absl::OkStatus();
    before = known->second.total;
  } else if (report.incarnation < known->second.incarnation) {
    return absl::OkStatus();
  }
  for (std::size_t b = 0; b < round_.size(); ++b) {
    round_[b] = saturating_sum(round_[b], counted_between(before[b], report.demand_ns[b]));
  }
  entries_.insert_or_assign(std::string(entrypoint_id),
                            Entry{report.incarnation, report.sequence, report.demand_ns});
  return absl::OkStatus();
}

bool DemandBook::has_traffic() const {
  return std::any_of(round_.begin(), round_.end(), [](std::uint64_t ns) { return ns > 0; });
}

std::optional<Demand> DemandBook::end_round() {
  const bool was_heard = std::any_of(entries_.begin(), entries_.end(), [](const auto& entry) {
    return entry.second.silent_rounds == 0;
  });
  for (auto& [entrypoint_id, entry] : entries_) ++entry.silent_rounds;
  std::erase_if(entries_,
                [](const auto& entry) { return entry.second.silent_rounds > kForgetAfterRounds; });
  std::optional<Demand> demand;
  if (was_heard) demand = round_;
  std::fill(round_.begin(), round_.end(), 0);
  return demand;
}

}  // namespace millrace::controller::buckets
