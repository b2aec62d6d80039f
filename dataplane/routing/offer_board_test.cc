#include "dataplane/routing/offer_board.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <random>

#include "dataplane/routing/claim_desk.h"

namespace millrace::dataplane::routing {
namespace {

using std::chrono::milliseconds;

constexpr std::array<bool, kBucketCount> kAll = {true, true, true, true};
TimePoint at(int ms) { return TimePoint() + milliseconds(ms); }

PullWorker worker(std::int64_t queued_ns, const std::array<bool, kBucketCount>& serves = kAll) {
  return {true, true, queued_ns, serves, 100};
}

std::vector<std::size_t> listeners(const std::vector<OfferBoard::News>& news) {
  std::vector<std::size_t> indices;
  indices.reserve(news.size());
  for (const OfferBoard::News& item : news) indices.push_back(item.worker);
  return indices;
}

TEST(OfferBoard, TellsThoseThatServeTheBucketAndHaveLeastToDo) {
  OfferBoard board(100);
  for (std::size_t i = 0; i < 8; ++i) board.set_worker(i, worker(80 - static_cast<int>(i)));
  EXPECT_TRUE(board.take_news(at(0)).empty());
  ASSERT_TRUE(board.push(1, {1, 5, at(0), 1}).ok());
  const auto news = board.take_news(at(1));
  EXPECT_EQ(listeners(news), (std::vector<std::size_t>{4, 5, 6, 7}));
  EXPECT_EQ(news[0].offers[1].waiting, 1);
  EXPECT_EQ(news[0].offers[1].quota_ns, 5);
  EXPECT_EQ(news[0].offers[1].oldest_since, at(0));
  EXPECT_EQ(news[0].offers[0].waiting, 0);
  EXPECT_TRUE(board.take_news(at(2)).empty());  // nothing new
  // Nobody claims it: more hear of it.
  EXPECT_EQ(board.next_news(), at(52));
  EXPECT_EQ(listeners(board.take_news(at(51))), (std::vector<std::size_t>{0, 1, 2, 3}));
  EXPECT_EQ(board.next_news(), std::nullopt);
}

TEST(OfferBoard, OthersHearOfItWhenTooFewServeIt) {
  OfferBoard board(100);
  for (std::size_t i = 0; i < 6; ++i) {
    board.set_worker(i, worker(10 - static_cast<int>(i), {i < 4, i >= 4, false, false}));
  }
  ASSERT_TRUE(board.push(1, {1, 5, at(0), 1}).ok());
  EXPECT_EQ(listeners(board.take_news(at(0))), (std::vector<std::size_t>{2, 3, 4, 5}));
}

TEST(OfferBoard, WhoWantsNoMoreOrIsTooSmallHearsNothing) {
  OfferBoard board(100);
  PullWorker full = worker(0);
  full.wants_more = false;
  PullWorker gone = worker(0);
  gone.is_accepting = false;
  PullWorker small = worker(0);
  small.kv_blocks = 9;
  board.set_worker(0, full);
  board.set_worker(1, gone);
  board.set_worker(2, small);
  ASSERT_TRUE(board.push(0, {1, 5, at(0), 10}).ok());
  EXPECT_TRUE(board.take_news(at(0)).empty());
  EXPECT_EQ(board.grant(1, 0), std::nullopt);
  EXPECT_EQ(board.grant(2, 0), std::nullopt);
  EXPECT_EQ(board.grant(99, 0), std::nullopt);
  EXPECT_EQ(board.offers_to(2)[0].waiting, 0);
  // A claim that was on its way when the worker said it had enough is good.
  EXPECT_EQ(board.grant(0, 0)->request, 1U);
  full.wants_more = true;
  ASSERT_TRUE(board.push(0, {2, 5, at(0), 10}).ok());
  board.set_worker(0, full);
  EXPECT_EQ(listeners(board.take_news(at(1))), (std::vector<std::size_t>{0}));
  // One that has had enough meanwhile hears no more.
  full.wants_more = false;
  board.set_worker(0, full);
  ASSERT_TRUE(board.push(1, {3, 5, at(0), 10}).ok());
  EXPECT_TRUE(board.take_news(at(2)).empty());
}

TEST(OfferBoard, ANewStreamHearsAllAgain) {
  OfferBoard board(100);
  board.set_worker(0, worker(0));
  ASSERT_TRUE(board.push(0, {1, 5, at(0), 1}).ok());
  EXPECT_EQ(board.take_news(at(0)).size(), 1U);
  EXPECT_EQ(board.take_news(at(0)).size(), 0U);
  board.forget_news(0);
  EXPECT_EQ(board.take_news(at(0)).size(), 1U);
}

/// Entrypoints and workers that talk through streams of messages, each in order and each late by
/// its own time.
class Fleet {
 public:
  Fleet(std::size_t entrypoints, std::size_t workers, std::uint64_t seed)
      : random_(seed), boards_(entrypoints, OfferBoard(1'000'000)), inboxes_(entrypoints) {
    for (std::size_t w = 0; w < workers; ++w) {
      workers_.push_back(std::make_unique<Worker>());
      for (OfferBoard& board : boards_) board.set_worker(w, seen(*workers_[w], w));
    }
  }

  void arrive(std::size_t entrypoint) {
    const RequestNumber request = ++last_request_;
    const int bucket = static_cast<int>(random_() % kBucketCount);
    const auto quota = static_cast<std::int64_t>(1 + random_() % 300);
    ASSERT_TRUE(boards_[entrypoint].push(bucket, {request, quota, at(now_), 1}).ok());
    ++waiting_;
  }

  /// A millisecond: every stream moves on with some chance, ranks work.
  void tick() {
    ++now_;
    for (std::size_t e = 0; e < boards_.size(); ++e) {
      for (const OfferBoard::News& news : boards_[e].take_news(at(now_))) {
        workers_[news.worker]->inbox[e].push_back({.offers = news.offers});
      }
      for (auto& [w, inbox] : inboxes_[e]) {
        while (!inbox.empty() && random_() % 2 == 0) {
          answer(e, w, inbox.front());
          inbox.pop_front();
        }
      }
    }
    for (std::size_t w = 0; w < workers_.size(); ++w) work(w);
  }

  std::size_t waiting() const { return waiting_; }
  int served(RequestNumber request) const {
    const auto found = served_.find(request);
    return found == served_.end() ? 0 : found->second;
  }
  RequestNumber last_request() const { return last_request_; }
  std::int64_t messages() const { return messages_; }

 private:
  struct ToWorker {
    Offers offers{};
    std::optional<std::int64_t> granted_ns = std::nullopt;
    std::uint64_t claim = 0;
  };
  struct ToEntrypoint {
    std::optional<ClaimDesk::Claim> claim = std::nullopt;
    PullWorker load{};
  };
  struct Worker {
    ClaimDesk desk{{.quota_per_rank_ns = 200}};
    std::map<std::size_t, std::deque<ToWorker>> inbox;  // by entrypoint
    std::deque<std::int64_t> queue;
    std::map<std::size_t, std::uint64_t> starts;
    bool has_said_more = true;
  };

  PullWorker seen(const Worker& worker, std::size_t w) const {
    std::array<bool, kBucketCount> serves{};
    serves[w % kBucketCount] = true;
    std::int64_t queued = 0;
    for (const std::int64_t left : worker.queue) queued += left;
    return {true, worker.desk.wants_more(), queued, serves, 1};
  }

  void answer(std::size_t e, std::size_t w, const ToEntrypoint& message) {
    ++messages_;
    boards_[e].set_worker(w, message.load);
    if (!message.claim) return;
    const auto granted = boards_[e].grant(w, message.claim->bucket);
    ToWorker reply{.claim = message.claim->number};
    if (granted) {
      ++served_[granted->request];
      --waiting_;
      reply.granted_ns = granted->quota_ns;
    } else {
      reply.offers = boards_[e].offers_to(w);
    }
    workers_[w]->inbox[e].push_back(reply);
  }

  void work(std::size_t w) {
    Worker& worker = *workers_[w];
    for (auto& [e, inbox] : worker.inbox) {
      while (!inbox.empty() && random_() % 2 == 0) {
        take(worker, e, inbox.front());
        inbox.pop_front();
      }
    }
    for (std::int64_t left = 20; left > 0 && !worker.queue.empty();) {
      const std::int64_t part = std::min(left, worker.queue.front());
      left -= part;
      worker.queue.front() -= part;
      if (worker.queue.front() == 0) worker.queue.pop_front();
    }
    std::int64_t queued = 0;
    for (const std::int64_t part : worker.queue) queued += part;
    worker.desk.set_queued(queued, static_cast<std::int64_t>(worker.queue.size()));
    const bool wants = worker.desk.wants_more();
    const bool is_news = wants != worker.has_said_more || now_ % 100 == 0;
    worker.has_said_more = wants;
    if (is_news) {
      for (auto& inbox : inboxes_) inbox[w].push_back({.load = seen(worker, w)});
    }
    if (const auto claim = worker.desk.next_claim(at(now_))) {
      inboxes_[claim->stream][w].push_back({claim, seen(worker, w)});
    }
  }

  void take(Worker& worker, std::size_t e, const ToWorker& message) {
    ++messages_;
    if (!message.granted_ns) {
      worker.desk.offer(e, message.offers);
      worker.desk.gone(e, message.claim);
      return;
    }
    worker.desk.grant(e, message.claim);
    worker.desk.coming(e, *message.granted_ns);
    worker.queue.push_back(*message.granted_ns);
    worker.desk.taken_up(e, ++worker.starts[e]);
  }

  std::mt19937_64 random_;
  int now_ = 0;
  std::vector<OfferBoard> boards_;
  std::vector<std::map<std::size_t, std::deque<ToEntrypoint>>> inboxes_;  // by worker
  std::vector<std::unique_ptr<Worker>> workers_;
  RequestNumber last_request_ = 0;
  std::size_t waiting_ = 0;
  std::map<RequestNumber, int> served_;
  std::int64_t messages_ = 0;
};

TEST(OfferBoard, WithDesksEveryRequestIsServedOnceWhateverTheMessagesDo) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    std::mt19937_64 random(seed);
    const std::size_t entrypoints = 1 + random() % 4;
    Fleet fleet(entrypoints, 1 + random() % 12, seed);
    for (int ms = 0; ms < 1'000; ++ms) {
      if (random() % 4 == 0) fleet.arrive(random() % entrypoints);
      fleet.tick();
    }
    // What was left when no more came: the ranks work it off.
    int rest = 0;
    while (fleet.waiting() > 0 && rest < 20'000) {
      fleet.tick();
      ++rest;
    }
    ASSERT_EQ(fleet.waiting(), 0U) << "seed " << seed;
    for (RequestNumber request = 1; request <= fleet.last_request(); ++request) {
      ASSERT_EQ(fleet.served(request), 1) << "seed " << seed;
    }
  }
}

TEST(OfferBoard, AnIdleFleetServesALoneRequestWithinAFewMessages) {
  Fleet fleet(2, 500, 7);
  for (int ms = 0; ms < 20; ++ms) fleet.tick();
  const std::int64_t before = fleet.messages();
  fleet.arrive(1);
  int ms = 0;
  while (fleet.waiting() > 0 && ms < 50) {
    fleet.tick();
    ++ms;
  }
  EXPECT_EQ(fleet.waiting(), 0U);
  EXPECT_LT(fleet.messages() - before, 4 * static_cast<std::int64_t>(OfferBoard::kFanOut));
}

}  // namespace
}  // namespace millrace::dataplane::routing
