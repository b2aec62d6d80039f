#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "dataplane/routing/prefill_queue.h"

namespace millrace::dataplane::routing {

/// An attempt to serve a request: what a charge belongs to, so that the late end of one attempt
/// never releases the charge of the next.
struct ChargeKey {
  RequestNumber request = 0;
  std::uint32_t attempt = 0;

  friend auto operator<=>(const ChargeKey&, const ChargeKey&) = default;
};

/// What a request adds to the load of the rank it goes to.
struct Charge {
  std::int64_t requests = 0;
  std::int64_t quota_ns = 0;   ///< prefill: predicted compute
  std::int64_t kv_tokens = 0;  ///< of its prompt and what was generated
  std::int64_t rows = 0;       ///< prefill: still to run
  std::int64_t kv_blocks = 0;  ///< that it may come to hold

  friend bool operator==(const Charge&, const Charge&) = default;
};

/// A rank's measure of its own load, as one entrypoint receives it.
struct LoadReport {
  std::uint64_t incarnation = 0;      ///< of the rank's process
  std::uint64_t sequence = 0;         ///< of the report, from 1, rising within an incarnation
  std::uint64_t included_charge = 0;  ///< the last charge of this entrypoint that the load includes
  Charge load;                        ///< of all entrypoints
};

/// What one entrypoint has sent to one incarnation of a rank; one that starts again begins a new
/// ledger, and its charges went with the old one. A request is charged at the moment of decision
/// and released exactly once; a report that includes a charge takes its place, and what came after
/// it is added on top. Reports may be lost, late, doubled, or of another incarnation. Pure; one
/// thread. Bounded by the requests in flight.
class ChargeLedger {
 public:
  explicit ChargeLedger(std::uint64_t incarnation) : incarnation_(incarnation) {}

  /// Charges; the number that the rank is to name in its reports. To charge a key twice is a bug.
  std::uint64_t charge(const ChargeKey& key, const Charge& charge);

  /// Releases a charge; false when there is none (any more): released before, or the rank
  /// restarted.
  bool release(const ChargeKey& key);

  /// Takes over a report; false when it is older than what is known, and ignored. One of a later
  /// incarnation drops everything charged to the process before it.
  bool report(const LoadReport& report);

  /// The rank's stream ended: its charges are gone, and reports of that incarnation count no more.
  void lose();

  /// The rank's load as far as this entrypoint can know it: never negative.
  Charge load() const;

  /// Of charges not released; all zero when the ledger is empty.
  Charge outstanding() const { return outstanding_; }
  std::size_t size() const { return by_key_.size(); }

 private:
  struct Open {
    ChargeKey key;
    Charge charge;
  };

  std::uint64_t next_number_ = 1;
  std::map<ChargeKey, std::uint64_t> by_key_;
  std::map<std::uint64_t, Open> open_;  // by number
  Charge outstanding_;
  Charge unreported_;  // of open_ beyond the last report
  std::uint64_t incarnation_;
  LoadReport last_;
};

}  // namespace millrace::dataplane::routing
