#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "api/admin/entrypoint_report.h"
#include "controller/buckets/buckets.h"

namespace millrace::controller::buckets {

/// An entrypoint that said nothing in so many rounds is forgotten.
inline constexpr int kForgetAfterRounds = 3;

/// A process that is heard for the first time at this sequence or an earlier one has just begun:
/// all that it counted is of now. Of others it is not known when it came: a controller that starts
/// anew must not take days of demand for one round's.
inline constexpr std::uint64_t kYoungSequence = 10;

/// Adds up the demand of a round from what entrypoints have counted since they began.
///
/// Each report counts as its difference to the last one of its process, so that reports that are
/// lost, late or doubled neither lose demand nor count it twice. A higher incarnation counts from
/// 0; reports of lower ones and of sequences that were there already change nothing.
///
/// Pure. Holds one entry for each entrypoint; who may report is the caller's business.
class DemandBook {
 public:
  explicit DemandBook(int bucket_count);

  /// kInvalidArgument: demand of another number of buckets (both are named).
  absl::Status add(std::string_view entrypoint_id, const api::admin::EntrypointReport& report);

  /// Whether demand came in this round.
  bool has_traffic() const;

  /// Ends the round: what came in it; nullopt when nobody reported. Forgets who was silent for
  /// long.
  std::optional<Demand> end_round();

 private:
  struct Entry {
    std::uint64_t incarnation = 0;
    std::uint64_t sequence = 0;
    Demand total;  // modulo kDemandModulusNs
    int silent_rounds = 0;
  };

  const int bucket_count_;
  std::map<std::string, Entry, std::less<>> entries_;
  Demand round_;
};

}  // namespace millrace::controller::buckets
