#include "dataplane/routing/charges.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <set>
#include <vector>

namespace millrace::dataplane::routing {
namespace {

constexpr Charge kNone{};

TEST(ChargeLedger, AReportTakesThePlaceOfWhatItIncludes) {
  ChargeLedger ledger(1);
  EXPECT_EQ(ledger.charge({1, 0}, {1, 100, 10}), 1U);
  EXPECT_EQ(ledger.charge({2, 0}, {1, 200, 20}), 2U);
  EXPECT_EQ(ledger.load(), (Charge{2, 300, 30}));
  EXPECT_TRUE(ledger.report({1, 1, 1, {5, 1'000, 50}}));
  EXPECT_EQ(ledger.load(), (Charge{6, 1'200, 70}));
  EXPECT_TRUE(ledger.release({1, 0}));  // the report still has it; the next one will not
  EXPECT_EQ(ledger.load(), (Charge{6, 1'200, 70}));
  EXPECT_TRUE(ledger.release({2, 0}));
  EXPECT_EQ(ledger.load(), (Charge{5, 1'000, 50}));
  EXPECT_FALSE(ledger.release({2, 0}));
  EXPECT_EQ(ledger.outstanding(), kNone);
}

TEST(ChargeLedger, IgnoresReportsThatAreOldDoubledOrImpossible) {
  ChargeLedger ledger(2);
  ledger.charge({1, 0}, {1, 100, 10});
  EXPECT_TRUE(ledger.report({2, 7, 0, {}}));
  EXPECT_FALSE(ledger.report({2, 7, 1, {9, 9, 9}}));
  EXPECT_FALSE(ledger.report({2, 6, 1, {9, 9, 9}}));
  EXPECT_FALSE(ledger.report({1, 99, 1, {9, 9, 9}}));  // of the process before
  EXPECT_FALSE(ledger.report({3, 99, 1, {9, 9, 9}}));  // of one that this ledger is not about
  EXPECT_FALSE(ledger.report({2, 8, 2, {9, 9, 9}}));   // a charge that nobody made
  EXPECT_FALSE(ledger.report({2, 9, 1, {-1, 9, 9}}));  // a load below nothing
  EXPECT_FALSE(ledger.report({2, 9, 1, {9, 9, 9, -1}}));
  EXPECT_FALSE(ledger.report({2, 9, 1, {9, 9, 9, 9, -1}}));
  EXPECT_EQ(ledger.load(), (Charge{1, 100, 10}));
}

/// One rank of a small cluster: what really runs there, and the messages on their way.
struct Rank {
  std::uint64_t incarnation = 1;
  ChargeLedger ledger{1};
  std::uint64_t sequence = 0;
  std::uint64_t included = 0;
  struct Start {
    ChargeKey key;
    std::uint64_t number;
    Charge charge;
  };
  std::deque<Start> starts;  // on the stream, in order
  std::map<ChargeKey, Charge> running;
  std::vector<LoadReport> reports;  // on their way, in no order
  LoadReport accepted;              // the last one taken over
  std::map<ChargeKey, std::pair<std::uint64_t, Charge>> unreleased;
};

void add(Charge& sum, const Charge& part) {
  sum.requests += part.requests;
  sum.quota_ns += part.quota_ns;
  sum.kv_tokens += part.kv_tokens;
  sum.rows += part.rows;
  sum.kv_blocks += part.kv_blocks;
}

/// A request of the run: where its current attempt is, if anywhere.
struct Request {
  std::uint32_t attempt = 0;
  std::optional<std::size_t> rank;
};

class SmallCluster {
 public:
  explicit SmallCluster(unsigned seed) : random_(seed), ranks_(1 + seed % 3) {}

  void play() {
    for (int i = 0; i < 60; ++i) {
      step();
      for (const Rank& rank : ranks_) check_load(rank);
      if (::testing::Test::HasFatalFailure()) return;
    }
    // Everything ends; then nothing may be left anywhere.
    for (auto& [number, request] : requests_) end(number, request);
    for (Rank& rank : ranks_) {
      EXPECT_EQ(rank.ledger.outstanding(), kNone);
      EXPECT_EQ(rank.ledger.size(), 0U);
      while (!rank.starts.empty()) receive(rank);
      rank.running.clear();
      report(rank);
      EXPECT_TRUE(rank.ledger.report(rank.reports.back()));
      EXPECT_EQ(rank.ledger.load(), kNone);
    }
    EXPECT_EQ(charged_, released_ + lost_);
  }

 private:
  std::uint64_t below(std::uint64_t n) { return random_() % n; }

  void step() {
    Rank& rank = ranks_[below(ranks_.size())];
    switch (below(8)) {
      case 0:
      case 1:
        return begin(next_request_++, 0);
      case 2:
        return receive(rank);
      case 3:
        return report(rank);
      case 4:
        return deliver(rank);
      case 5:
        return end_one();
      case 6:
        return below(4) == 0 ? die(rank) : receive(rank);
      default:
        return retry_one();
    }
  }

  void begin(RequestNumber number, std::uint32_t attempt) {
    const std::size_t index = below(ranks_.size());
    Rank& rank = ranks_[index];
    const Charge charge{
        1, static_cast<std::int64_t>(below(1000)), static_cast<std::int64_t>(below(100)),
        static_cast<std::int64_t>(below(100)), static_cast<std::int64_t>(below(10))};
    const ChargeKey key{number, attempt};
    const std::uint64_t charge_number = rank.ledger.charge(key, charge);
    rank.unreleased[key] = {charge_number, charge};
    rank.starts.push_back({key, charge_number, charge});
    ++charged_;
    requests_[number] = {attempt, index};
  }

  /// The rank takes up the next start; it may have been cancelled meanwhile.
  void receive(Rank& rank) {
    if (rank.starts.empty()) return;
    const auto& start = rank.starts.front();
    rank.included = start.number;
    const auto found = requests_.find(start.key.request);
    if (found != requests_.end() && found->second.rank &&
        found->second.attempt == start.key.attempt) {
      rank.running[start.key] = start.charge;
    }
    rank.starts.pop_front();
  }

  void report(Rank& rank) {
    Charge load;
    for (const auto& [key, charge] : rank.running) add(load, charge);
    rank.reports.push_back({rank.incarnation, ++rank.sequence, rank.included, load});
  }

  /// Some report arrives: perhaps an old one, perhaps for the second time; some never do.
  void deliver(Rank& rank) {
    if (rank.reports.empty()) return;
    const auto which =
        rank.reports.begin() + static_cast<std::ptrdiff_t>(below(rank.reports.size()));
    const bool is_newer = std::pair(which->incarnation, which->sequence) >
                          std::pair(rank.accepted.incarnation, rank.accepted.sequence);
    const bool is_alive = which->incarnation == rank.incarnation;
    ASSERT_EQ(rank.ledger.report(*which), is_newer && is_alive);
    if (is_newer && is_alive) rank.accepted = *which;
    if (below(3) != 0) rank.reports.erase(which);
  }

  /// Completed, or cancelled: at the rank and in the book; the second release finds nothing.
  void end(RequestNumber number, Request& request) {
    if (!request.rank) return;
    Rank& rank = ranks_[*request.rank];
    const ChargeKey key{number, request.attempt};
    rank.running.erase(key);
    rank.unreleased.erase(key);
    EXPECT_TRUE(rank.ledger.release(key));
    EXPECT_FALSE(rank.ledger.release(key));
    if (request.attempt > 0) {
      EXPECT_FALSE(
          rank.ledger.release({number, request.attempt - 1}));  // late end of an old attempt
    }
    ++released_;
    request.rank.reset();
  }

  void end_one() {
    if (requests_.empty()) return;
    auto it = requests_.begin();
    std::advance(it, static_cast<std::ptrdiff_t>(below(requests_.size())));
    end(it->first, it->second);
    requests_.erase(it);
  }

  void retry_one() {
    if (requests_.empty()) return;
    auto it = requests_.begin();
    std::advance(it, static_cast<std::ptrdiff_t>(below(requests_.size())));
    const RequestNumber number = it->first;
    end(number, it->second);
    begin(number, it->second.attempt + 1);
  }

  void die(Rank& rank) {
    lost_ += rank.ledger.size();
    rank.starts.clear();
    rank.running.clear();
    rank.unreleased.clear();
    rank.accepted = {};
    rank.sequence = 0;
    rank.included = 0;
    rank.ledger = ChargeLedger(++rank.incarnation);
    const std::size_t index = static_cast<std::size_t>(&rank - ranks_.data());
    std::vector<RequestNumber> orphans;
    for (auto& [number, request] : requests_) {
      if (request.rank == index) orphans.push_back(number);
    }
    for (const RequestNumber number : orphans) {
      const std::uint32_t attempt = requests_[number].attempt;
      begin(number, attempt + 1);
    }
  }

  /// What the entrypoint should believe, added up from scratch: the last report that it took over,
  /// and every charge beyond it that is not released.
  static void check_load(const Rank& rank) {
    Charge expected = rank.accepted.load;
    for (const auto& [key, numbered] : rank.unreleased) {
      if (numbered.first > rank.accepted.included_charge) add(expected, numbered.second);
    }
    ASSERT_EQ(rank.ledger.load(), expected);
    ASSERT_EQ(rank.ledger.size(), rank.unreleased.size());
  }

  std::mt19937_64 random_;
  std::vector<Rank> ranks_;
  std::map<RequestNumber, Request> requests_;
  RequestNumber next_request_ = 1;
  std::uint64_t charged_ = 0;
  std::uint64_t released_ = 0;
  std::uint64_t lost_ = 0;
};

TEST(ChargeLedger, ChargedIsReleasedInTenThousandRuns) {
  for (unsigned seed = 0; seed < 10'000; ++seed) {
    SCOPED_TRACE(seed);
    SmallCluster(seed).play();
    ASSERT_FALSE(HasFailure());
  }
}

}  // namespace
}  // namespace millrace::dataplane::routing
