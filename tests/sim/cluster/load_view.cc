#include "tests/sim/cluster/load_view.h"

#include <algorithm>

namespace millrace::sim {

using dataplane::routing::DecodeRank;

LoadView::LoadView(std::size_t entrypoints, std::size_t targets)
    : entrypoints_(entrypoints), targets_(targets) {
  ledgers_.resize(entrypoints * targets, dataplane::routing::ChargeLedger(1));
  last_charge_.resize(entrypoints * targets);
  incarnation_.resize(targets, 1);
  is_marked_.resize(targets);
}

void LoadView::charge(std::size_t entrypoint, std::size_t target, const ChargeKey& key,
                      const Charge& charge) {
  last_charge_[entrypoint * targets_ + target] = ledger(entrypoint, target).charge(key, charge);
  mark(target);
}

bool LoadView::release(std::size_t entrypoint, std::size_t target, const ChargeKey& key) {
  mark(target);
  return ledger(entrypoint, target).release(key);
}

void LoadView::mark(std::size_t target) {
  if (is_marked_[target]) return;
  is_marked_[target] = true;
  marked_.push_back(target);
}

void LoadView::restart(std::size_t target) {
  ++incarnation_[target];
  for (std::size_t e = 0; e < entrypoints_; ++e) {
    ledger(e, target) = dataplane::routing::ChargeLedger(incarnation_[target]);
    last_charge_[e * targets_ + target] = 0;
  }
}

std::vector<std::uint64_t> LoadView::included_of(std::size_t target) const {
  std::vector<std::uint64_t> included(entrypoints_);
  for (std::size_t e = 0; e < entrypoints_; ++e) included[e] = last_charge_[e * targets_ + target];
  return included;
}

std::int64_t LoadView::outstanding() const {
  std::int64_t count = 0;
  for (const auto& ledger : ledgers_) count += static_cast<std::int64_t>(ledger.size());
  return count;
}

DecodeView::DecodeView(std::size_t entrypoints, std::size_t ranks, std::int64_t kv_tokens_per_rank)
    : room_(kv_tokens_per_rank), ledgers_(entrypoints, ranks), boards_(entrypoints) {
  for (dataplane::routing::DecodeBoard& board : boards_) {
    for (std::size_t rank = 0; rank < ranks; ++rank) board.set(rank, {.free_kv_tokens = room_});
  }
}

void DecodeView::refresh(std::size_t entrypoint, std::size_t index) {
  const dataplane::routing::Charge load = ledgers_.load(entrypoint, index);
  DecodeRank rank = boards_[entrypoint].ranks()[index];
  rank.requests = load.requests;
  rank.kv_tokens = load.kv_tokens;
  rank.free_kv_tokens = room_ - load.kv_tokens;
  boards_[entrypoint].set(index, rank);
}

void DecodeView::set_accepting(std::size_t index, bool is_accepting) {
  for (dataplane::routing::DecodeBoard& board : boards_) {
    DecodeRank rank = board.ranks()[index];
    rank.is_accepting = is_accepting;
    board.set(index, rank);
  }
}

}  // namespace millrace::sim
