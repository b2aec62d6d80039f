#include "controller/placement/rebalance.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>

#include "common/check.h"

namespace millrace::controller::placement {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

/// Copies of each expert and where they are; keeps rank loads while copies move.
class Balance {
 public:
  Balance(const RankGroup& group, std::span<const RankExperts> current);

  void choose_copies(double hysteresis);
  void give_up_copies();
  void place_copies();
  void exchange(double balance_target);
  std::vector<RankExperts> take() { return std::move(ranks_); }

 private:
  int experts() const { return static_cast<int>(group_.loads.size()); }
  double share(int expert) const { return group_.loads[at(expert)] / wanted_[at(expert)]; }
  bool has(int rank, int expert) const { return has_[at(rank) * group_.loads.size() + at(expert)]; }
  bool has_room(int rank) const {
    return static_cast<int>(ranks_[at(rank)].size()) < group_.slots_per_rank;
  }
  void add(int rank, int expert);
  void remove(int rank, std::size_t place);
  void cut_to_slots(int rank);
  void drop_from_heaviest(int expert);
  void make_room_for(int expert);
  void add_up();
  std::optional<int> most_loaded() const;
  std::optional<int> cheapest_to_reduce() const;

  struct Exchange {
    int other = -1;  ///< the rank that takes
    std::size_t given = 0;
    std::size_t taken = 0;
    double heavier = 0.0;  ///< the larger of the two ranks' loads afterwards
  };
  Exchange best_exchange(int heaviest) const;

  const RankGroup& group_;
  std::vector<RankExperts> ranks_;
  std::vector<std::uint8_t> has_;  // [rank, expert]
  std::vector<int> copies_;        // placed
  std::vector<int> wanted_;        // copies that there shall be
  std::vector<double> rank_load_;
};

Balance::Balance(const RankGroup& group, std::span<const RankExperts> current)
    : group_(group),
      ranks_(at(group.rank_count)),
      has_(at(group.rank_count) * group.loads.size(), 0),
      copies_(group.loads.size(), 0),
      wanted_(group.loads.size(), 0),
      rank_load_(at(group.rank_count), 0.0) {
  CHECK(static_cast<int>(current.size()) == group.rank_count);
  CHECK(group.rank_count * group.slots_per_rank >= experts());
  for (int rank = 0; rank < group.rank_count; ++rank) {
    for (const int expert : current[at(rank)]) {
      if (expert < 0 || expert >= experts() || has(rank, expert)) continue;
      add(rank, expert);
    }
  }
  for (int rank = 0; rank < group.rank_count; ++rank) cut_to_slots(rank);
}

void Balance::add(int rank, int expert) {
  ranks_[at(rank)].push_back(expert);
  has_[at(rank) * group_.loads.size() + at(expert)] = 1;
  ++copies_[at(expert)];
}

void Balance::remove(int rank, std::size_t place) {
  RankExperts& experts_here = ranks_[at(rank)];
  const int expert = experts_here[place];
  has_[at(rank) * group_.loads.size() + at(expert)] = 0;
  --copies_[at(expert)];
  experts_here.erase(experts_here.begin() + static_cast<std::ptrdiff_t>(place));
}

/// A rank that has more than its slots gives up what others have most of.
void Balance::cut_to_slots(int rank) {
  const RankExperts& experts_here = ranks_[at(rank)];
  while (static_cast<int>(experts_here.size()) > group_.slots_per_rank) {
    std::size_t most = 0;
    for (std::size_t place = 1; place < experts_here.size(); ++place) {
      if (copies_[at(experts_here[place])] >= copies_[at(experts_here[most])]) most = place;
    }
    remove(rank, most);
  }
}

/// The expert that most needs a copy more, of those that are not on all ranks yet.
std::optional<int> Balance::most_loaded() const {
  std::optional<int> most;
  for (int e = 0; e < experts(); ++e) {
    if (wanted_[at(e)] >= group_.rank_count) continue;
    if (!most || share(e) > share(*most)) most = e;
  }
  return most;
}

/// The expert whose copies would carry least with one copy fewer.
std::optional<int> Balance::cheapest_to_reduce() const {
  std::optional<int> cheapest;
  double least = 0.0;
  for (int e = 0; e < experts(); ++e) {
    if (wanted_[at(e)] < 2) continue;
    const double reduced = group_.loads[at(e)] / (wanted_[at(e)] - 1);
    if (cheapest && reduced >= least) continue;
    cheapest = e;
    least = reduced;
  }
  return cheapest;
}

void Balance::choose_copies(double hysteresis) {
  for (int e = 0; e < experts(); ++e) wanted_[at(e)] = std::max(1, copies_[at(e)]);
  const int slots = group_.rank_count * group_.slots_per_rank;
  int sum = std::accumulate(wanted_.begin(), wanted_.end(), 0);
  for (; sum > slots; --sum) --wanted_[at(*cheapest_to_reduce())];
  for (; sum < slots; ++sum) ++wanted_[at(*most_loaded())];
  // Each transfer lowers the sorted list of loads per copy, so this ends; the bound is for
  // rounding.
  for (int transfers = 0; transfers < slots; ++transfers) {
    const std::optional<int> to = most_loaded();
    const std::optional<int> from = cheapest_to_reduce();
    if (!to || !from || *to == *from) break;
    const double reduced = group_.loads[at(*from)] / (wanted_[at(*from)] - 1);
    if (share(*to) <= reduced * (1.0 + hysteresis)) break;
    ++wanted_[at(*to)];
    --wanted_[at(*from)];
  }
  add_up();
}

void Balance::add_up() {
  for (int rank = 0; rank < group_.rank_count; ++rank) {
    double sum = 0.0;
    for (const int expert : ranks_[at(rank)]) sum += share(expert);
    rank_load_[at(rank)] = sum;
  }
}

void Balance::give_up_copies() {
  for (int e = 0; e < experts(); ++e) {
    while (copies_[at(e)] > wanted_[at(e)]) drop_from_heaviest(e);
  }
}

void Balance::drop_from_heaviest(int expert) {
  int heaviest = -1;
  for (int rank = 0; rank < group_.rank_count; ++rank) {
    if (!has(rank, expert)) continue;
    if (heaviest < 0 || rank_load_[at(rank)] > rank_load_[at(heaviest)]) heaviest = rank;
  }
  const RankExperts& experts_here = ranks_[at(heaviest)];
  const auto place = std::find(experts_here.begin(), experts_here.end(), expert);
  remove(heaviest, static_cast<std::size_t>(place - experts_here.begin()));
  rank_load_[at(heaviest)] -= share(expert);
}

void Balance::place_copies() {
  std::vector<int> missing;
  for (int e = 0; e < experts(); ++e) {
    missing.insert(missing.end(), at(wanted_[at(e)] - copies_[at(e)]), e);
  }
  std::stable_sort(missing.begin(), missing.end(),
                   [&](int a, int b) { return share(a) > share(b); });
  for (const int expert : missing) {
    int lightest = -1;
    for (int rank = 0; rank < group_.rank_count; ++rank) {
      if (!has_room(rank) || has(rank, expert)) continue;
      if (lightest < 0 || rank_load_[at(rank)] < rank_load_[at(lightest)]) lightest = rank;
    }
    if (lightest < 0) {
      make_room_for(expert);
      continue;
    }
    add(lightest, expert);
    rank_load_[at(lightest)] += share(expert);
  }
}

/// All ranks with room have the expert already. One of the full ranks without it gives another
/// expert to a rank with room; there is always one to give, as a full rank has more experts.
void Balance::make_room_for(int expert) {
  Exchange best;
  int best_full = -1;
  for (int open = 0; open < group_.rank_count; ++open) {
    if (!has_room(open)) continue;
    for (int full = 0; full < group_.rank_count; ++full) {
      if (has(full, expert)) continue;
      for (std::size_t place = 0; place < ranks_[at(full)].size(); ++place) {
        const int given = ranks_[at(full)][place];
        if (has(open, given)) continue;
        const double heavier = std::max(rank_load_[at(open)] + share(given),
                                        rank_load_[at(full)] - share(given) + share(expert));
        if (best_full >= 0 && heavier >= best.heavier) continue;
        best = {open, place, 0, heavier};
        best_full = full;
      }
    }
  }
  CHECK(best_full >= 0);
  const int given = ranks_[at(best_full)][best.given];
  remove(best_full, best.given);
  add(best.other, given);
  add(best_full, expert);
  rank_load_[at(best.other)] += share(given);
  rank_load_[at(best_full)] += share(expert) - share(given);
}

Balance::Exchange Balance::best_exchange(int heaviest) const {
  const double load = rank_load_[at(heaviest)];
  Exchange best;
  best.heavier = load * (1.0 - 1e-12);  // what rounding might feign is no gain
  for (int other = 0; other < group_.rank_count; ++other) {
    if (rank_load_[at(other)] >= best.heavier) continue;
    for (std::size_t given = 0; given < ranks_[at(heaviest)].size(); ++given) {
      const int to_other = ranks_[at(heaviest)][given];
      if (has(other, to_other)) continue;
      for (std::size_t taken = 0; taken < ranks_[at(other)].size(); ++taken) {
        const int to_heaviest = ranks_[at(other)][taken];
        const double moved = share(to_other) - share(to_heaviest);
        if (moved <= 0.0 || has(heaviest, to_heaviest)) continue;
        const double heavier = std::max(load - moved, rank_load_[at(other)] + moved);
        if (heavier < best.heavier) best = {other, given, taken, heavier};
      }
    }
  }
  return best;
}

void Balance::exchange(double balance_target) {
  const double sum = std::accumulate(group_.loads.begin(), group_.loads.end(), 0.0);
  const double enough = balance_target * sum / group_.rank_count;
  // Some tens are needed in practice; a bound keeps the time bounded whatever the loads.
  const int most_exchanges = 4 * group_.rank_count * group_.slots_per_rank;
  for (int i = 0; i < most_exchanges; ++i) {
    const auto top = std::max_element(rank_load_.begin(), rank_load_.end());
    if (*top <= enough) return;
    const int heaviest = static_cast<int>(top - rank_load_.begin());
    const Exchange best = best_exchange(heaviest);
    if (best.other < 0) return;
    int& given = ranks_[at(heaviest)][best.given];
    int& taken = ranks_[at(best.other)][best.taken];
    const double moved = share(given) - share(taken);
    for (const int rank : {heaviest, best.other}) {
      std::uint8_t* const row = &has_[at(rank) * group_.loads.size()];
      row[at(given)] ^= 1U;
      row[at(taken)] ^= 1U;
    }
    std::swap(given, taken);
    rank_load_[at(heaviest)] -= moved;
    rank_load_[at(best.other)] += moved;
  }
}

}  // namespace

std::vector<RankExperts> rebalance(const RankGroup& group, std::span<const RankExperts> current,
                                   const Effort& effort) {
  const int experts = static_cast<int>(group.loads.size());
  if (group.slots_per_rank >= experts) {
    RankExperts all(at(group.slots_per_rank));
    for (int slot = 0; slot < group.slots_per_rank; ++slot) all[at(slot)] = slot % experts;
    return std::vector<RankExperts>(at(group.rank_count), all);
  }
  Balance balance(group, current);
  balance.choose_copies(effort.copy_hysteresis);
  balance.give_up_copies();
  balance.place_copies();
  balance.exchange(effort.balance_target);
  return balance.take();
}

double imbalance(const RankGroup& group, std::span<const RankExperts> ranks) {
  std::vector<int> copies(group.loads.size(), 0);
  for (const RankExperts& rank : ranks) {
    for (const int expert : rank) ++copies[at(expert)];
  }
  const double sum = std::accumulate(group.loads.begin(), group.loads.end(), 0.0);
  if (sum <= 0.0) return 1.0;
  double heaviest = 0.0;
  for (const RankExperts& rank : ranks) {
    double load = 0.0;
    for (const int expert : rank) load += group.loads[at(expert)] / copies[at(expert)];
    heaviest = std::max(heaviest, load);
  }
  return heaviest * static_cast<double>(ranks.size()) / sum;
}

}  // namespace millrace::controller::placement
