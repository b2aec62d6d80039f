#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

namespace millrace::dataplane::routing {

/// A decode rank at the moment of a decision: its last load report, and what was charged to it
/// since.
struct DecodeRank {
  std::int64_t requests = 0;        ///< charged to it, started or not
  std::int64_t kv_tokens = 0;       ///< of those requests
  std::int64_t free_kv_tokens = 0;  ///< that a new request could have; below its need: no room
  bool is_accepting = true;
  std::int64_t capacity_kv_tokens = std::numeric_limits<std::int64_t>::max();  ///< used and free
};

/// What a request asks of a decode rank.
struct DecodeNeed {
  std::int64_t tokens = 0;       ///< its KV when it comes
  std::int64_t room_tokens = 0;  ///< that it may come to hold; at least `tokens`
};

/// Sums over the ranks that accept requests.
struct DecodeTotals {
  std::int64_t ranks = 0;
  std::int64_t kv_tokens = 0;
  std::int64_t free_kv_tokens = 0;
};
DecodeTotals totals_of(std::span<const DecodeRank> ranks);

/// The KV length that no rank should exceed while others lie lower:
/// 1.05 × (pending + charged) ÷ ranks, where `pending_tokens` are the prompt tokens of all requests
/// without a decode rank yet, the one to be placed included, and count only as far as they fit the
/// free KV (DualPath §6, arXiv 2602.21548).
double high_token_mark(std::int64_t pending_tokens, const DecodeTotals& totals);

/// How far a choice looks. Where several entrypoints choose by the same late reports, each should
/// look at a few ranks from a random one on: else all of them send what comes between two reports
/// to the ranks that were emptiest.
struct DecodeLook {
  std::size_t first = 0;
  std::size_t most = std::numeric_limits<std::size_t>::max();
};

/// Chooses the decode rank of a request: of the ranks that have room and would stay at or below the
/// mark, the one with the fewest requests; if every rank with room would exceed it, the one with
/// the least KV. So short requests go where few run although their KV is long, and long ones where
/// KV is short. nullopt when none has room.
///
/// Looks at `look.most` ranks with room, from `look.first` on and round the end; equal scores go to
/// the one seen first. By default that is every rank, from index 0. Equal inputs give equal
/// answers.
std::optional<std::size_t> pick_decode_rank(const DecodeNeed& need, std::int64_t pending_tokens,
                                            const DecodeTotals& totals,
                                            std::span<const DecodeRank> ranks,
                                            const DecodeLook& look = {});

/// The same rule where a request must wait for room: among the ranks that could ever hold it.
std::optional<std::size_t> pick_decode_rank_to_wait(const DecodeNeed& need,
                                                    std::int64_t pending_tokens,
                                                    const DecodeTotals& totals,
                                                    std::span<const DecodeRank> ranks,
                                                    const DecodeLook& look = {});

/// Decode ranks and their sums, kept up to date change by change, so that a decision need not look
/// at all of them.
class DecodeBoard {
 public:
  /// Ranks that accept nothing are added up to that index.
  void set(std::size_t index, const DecodeRank& rank);

  std::span<const DecodeRank> ranks() const { return ranks_; }
  const DecodeTotals& totals() const { return totals_; }

 private:
  std::vector<DecodeRank> ranks_;
  DecodeTotals totals_;
};

}  // namespace millrace::dataplane::routing
