#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace millrace::storage::kv {

/// CHECK: how many leading blocks of a prompt are stored, by asking for few of them. Pure.
///
/// Blocks of a chain are evicted tail first, so that existence is (nearly) monotone and a 33-ary
/// search finds its end: each round asks for 32 blocks at equal distances and leaves a 33rd part.
/// A million tokens, 7,812 blocks, take three rounds; a last one confirms the 8 blocks before the
/// end, where a race with eviction would show. The answer is a promise to try, not to succeed:
/// a hole elsewhere goes unseen and surfaces as a short fetch.
///
///     CheckPlan plan(keys.size());
///     for (auto ask = plan.next(); !ask.empty(); ask = plan.next())
///       plan.answer(which of `ask` exist);
///     plan.hit_blocks();
class CheckPlan {
 public:
  static constexpr std::size_t kKeysPerRound = 32;
  static constexpr std::size_t kConfirmedBlocks = 8;

  explicit CheckPlan(std::size_t block_count) : high_(block_count) {}

  /// Indices of the blocks to ask for now, ascending, at most kKeysPerRound; none: the plan is
  /// done. Equal until they are answered.
  std::vector<std::uint32_t> next() const;

  /// Which of next() exist, in its order and number (CHECK). What could not be learned counts as
  /// absent.
  void answer(const std::vector<bool>& present);

  /// Leading blocks believed to exist: never more than the index of any block that was seen absent,
  /// nor behind one.
  std::size_t hit_blocks() const { return low_; }

  int rounds() const { return rounds_; }

 private:
  std::vector<std::uint32_t> search_keys() const;
  std::vector<std::uint32_t> confirm_keys() const;
  bool was_seen(std::uint32_t index) const;

  std::size_t low_ = 0;                      ///< so many are believed to exist
  std::size_t high_ = 0;                     ///< and no more than so many
  std::vector<std::uint32_t> seen_present_;  ///< a round's keys a round: bounded with them
  bool is_confirmed_ = false;
  int rounds_ = 0;
};

}  // namespace millrace::storage::kv
