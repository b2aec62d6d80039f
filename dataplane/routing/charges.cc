#include "dataplane/routing/charges.h"

#include <algorithm>

#include "common/check.h"

namespace millrace::dataplane::routing {
namespace {

Charge& operator+=(Charge& sum, const Charge& part) {
  sum.requests += part.requests;
  sum.quota_ns += part.quota_ns;
  sum.kv_tokens += part.kv_tokens;
  sum.rows += part.rows;
  sum.kv_blocks += part.kv_blocks;
  return sum;
}

Charge& operator-=(Charge& sum, const Charge& part) {
  sum.requests -= part.requests;
  sum.quota_ns -= part.quota_ns;
  sum.kv_tokens -= part.kv_tokens;
  sum.rows -= part.rows;
  sum.kv_blocks -= part.kv_blocks;
  return sum;
}

bool is_valid(const Charge& charge) {
  return charge.requests >= 0 && charge.quota_ns >= 0 && charge.kv_tokens >= 0 &&
         charge.rows >= 0 && charge.kv_blocks >= 0;
}

}  // namespace

std::uint64_t ChargeLedger::charge(const ChargeKey& key, const Charge& charge) {
  CHECK(is_valid(charge));
  const std::uint64_t number = next_number_++;
  const bool is_new = by_key_.emplace(key, number).second;
  CHECK(is_new, "an attempt is charged once");
  open_.emplace_hint(open_.end(), number, Open{key, charge});
  outstanding_ += charge;
  unreported_ += charge;
  return number;
}

bool ChargeLedger::release(const ChargeKey& key) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return false;
  const auto open = open_.find(found->second);
  outstanding_ -= open->second.charge;
  if (open->first > last_.included_charge) unreported_ -= open->second.charge;
  open_.erase(open);
  by_key_.erase(found);
  return true;
}

bool ChargeLedger::report(const LoadReport& report) {
  if (report.incarnation != incarnation_ || report.sequence <= last_.sequence) return false;
  if (!is_valid(report.load) || report.included_charge >= next_number_) return false;
  // What an earlier report included stays included.
  const std::uint64_t included = std::max(report.included_charge, last_.included_charge);
  for (auto open = open_.upper_bound(last_.included_charge);
       open != open_.end() && open->first <= included; ++open) {
    unreported_ -= open->second.charge;
  }
  last_ = report;
  last_.included_charge = included;
  return true;
}

Charge ChargeLedger::load() const {
  Charge load = last_.load;
  load += unreported_;
  return load;
}

}  // namespace millrace::dataplane::routing
