#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "dataplane/routing/charges.h"
#include "dataplane/routing/decode_rank.h"
#include "tests/sim/cluster/scenario.h"

namespace millrace::sim {

/// What the entrypoints know of the targets (ranks, or whole instances) that they send requests to:
/// a production ledger for each pair, and the load reports of the targets, which are late.
///
/// A target counts a charge from the moment of decision on; it reports when its load has changed.
class LoadView {
 public:
  LoadView(std::size_t entrypoints, std::size_t targets);

  using Charge = dataplane::routing::Charge;
  using ChargeKey = dataplane::routing::ChargeKey;

  void charge(std::size_t entrypoint, std::size_t target, const ChargeKey& key,
              const Charge& charge);
  /// False when there is none (any more).
  bool release(std::size_t entrypoint, std::size_t target, const ChargeKey& key);

  /// The target's load has changed: it will be in the next report.
  void mark(std::size_t target);
  /// A target died: its charges are gone, and it starts again with nothing.
  void restart(std::size_t target);

  /// Begins a round: takes the load of each marked target, by `load_of(target)`. They are on their
  /// way until `deliver`, rounds in the order in which they were taken. False when there is nothing
  /// to report.
  template <typename LoadOf>
  bool take_reports(LoadOf load_of) {
    if (marked_.empty()) return false;
    Round& round = rounds_.emplace_back();
    round.reserve(marked_.size());
    for (const std::size_t target : marked_) {
      is_marked_[target] = false;
      round.push_back(
          {target, incarnation_[target], ++sequence_, load_of(target), included_of(target)});
    }
    marked_.clear();
    return true;
  }
  /// Hands the oldest round to the entrypoints. `changed(entrypoint, target)` after each.
  template <typename Changed>
  void deliver(Changed changed) {
    const Round round = std::move(rounds_.front());
    rounds_.erase(rounds_.begin());
    for (const Report& report : round) {
      for (std::size_t e = 0; e < entrypoints_; ++e) {
        if (ledger(e, report.target)
                .report({report.incarnation, report.sequence, report.included[e], report.load})) {
          changed(e, report.target);
        }
      }
    }
  }

  /// As that entrypoint can know it.
  Charge load(std::size_t entrypoint, std::size_t target) const {
    return ledgers_[entrypoint * targets_ + target].load();
  }
  /// Charges that nobody released, over all pairs.
  std::int64_t outstanding() const;

 private:
  struct Report {
    std::size_t target = 0;
    std::uint64_t incarnation = 0;
    std::uint64_t sequence = 0;
    Charge load;
    std::vector<std::uint64_t> included;  // by entrypoint
  };
  using Round = std::vector<Report>;

  dataplane::routing::ChargeLedger& ledger(std::size_t entrypoint, std::size_t target) {
    return ledgers_[entrypoint * targets_ + target];
  }
  std::vector<std::uint64_t> included_of(std::size_t target) const;

  std::size_t entrypoints_;
  std::size_t targets_;
  std::vector<dataplane::routing::ChargeLedger> ledgers_;
  std::vector<std::uint64_t> last_charge_;  // as ledgers_
  std::vector<std::uint64_t> incarnation_;
  std::vector<bool> is_marked_;
  std::vector<std::size_t> marked_;
  std::vector<Round> rounds_;
  std::uint64_t sequence_ = 0;
};

/// Decode ranks as the entrypoints know them, ready for the policies.
class DecodeView {
 public:
  DecodeView(std::size_t entrypoints, std::size_t ranks, std::int64_t kv_tokens_per_rank);

  LoadView& ledgers() { return ledgers_; }
  /// Takes over what an entrypoint's ledger of a rank says now.
  void refresh(std::size_t entrypoint, std::size_t rank);
  void set_accepting(std::size_t rank, bool is_accepting);

  std::span<const dataplane::routing::DecodeRank> ranks(std::size_t entrypoint) const {
    return boards_[entrypoint].ranks();
  }
  const dataplane::routing::DecodeTotals& totals(std::size_t entrypoint) const {
    return boards_[entrypoint].totals();
  }

 private:
  std::int64_t room_;
  LoadView ledgers_;
  std::vector<dataplane::routing::DecodeBoard> boards_;  // by entrypoint
};

}  // namespace millrace::sim
