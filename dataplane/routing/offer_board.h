#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/time_point.h"
#include "dataplane/routing/prefill_claim.h"
#include "dataplane/routing/prefill_queue.h"

namespace millrace::dataplane::routing {

/// A prefill worker as an entrypoint that offers requests knows it.
struct PullWorker {
  bool is_accepting = false;
  bool wants_more = false;  ///< by its last report
  std::int64_t queued_ns = 0;
  std::array<bool, kBucketCount> serves{};
  std::int64_t kv_blocks = 0;  ///< of its pool

  friend bool operator==(const PullWorker&, const PullWorker&) = default;
};

/// The requests of one entrypoint that wait for a prefill worker, and which workers it tells of
/// them. Pure; one thread. Every operation takes logarithmic time, news by the number of those they
/// go to.
///
/// Of the workers that want more, a few hear of the longest-waiting request of a bucket: those that
/// serve it first, and of them those with the least compute queued. As long as nobody claims it,
/// twice as many hear of it every 50 ms. So an entrypoint's messages grow with its requests, not
/// with the fleet. A worker that has heard of a request which is gone is told when it claims it.
class OfferBoard {
 public:
  static constexpr std::size_t kFanOut = 4;
  static constexpr std::chrono::milliseconds kWidenEvery{50};

  explicit OfferBoard(std::size_t max_waiting) : queue_(max_waiting) {}

  /// As PrefillQueue::push and ::remove.
  absl::Status push(int bucket, const WaitingPrefill& waiting) {
    return queue_.push(bucket, waiting);
  }
  bool remove(RequestNumber request) { return queue_.remove(request); }
  const PrefillQueue& queue() const { return queue_; }

  /// A worker is new, or has changed. By index: small numbers, used again for the same worker only.
  void set_worker(std::size_t index, const PullWorker& worker);
  /// It has forgotten what it was told: its stream is a new one.
  void forget_news(std::size_t index);

  /// Answers a worker's claim: the longest-waiting request of the bucket is its own now. nullopt:
  /// gone, or it does not fit the worker's pool.
  std::optional<WaitingPrefill> grant(std::size_t index, int bucket);

  struct News {
    std::size_t worker = 0;
    Offers offers{};
  };
  /// What a worker is to hear now: of buckets whose first request would fit its pool. Counts as
  /// told.
  Offers offers_to(std::size_t index);
  /// Whom to tell what, after any change and when next_news() comes.
  std::vector<News> take_news(TimePoint now);
  /// When more workers are to hear of what still waits; nullopt: only after a change.
  std::optional<TimePoint> next_news() const { return next_news_; }

 private:
  using Wanting = std::set<std::pair<std::int64_t, std::size_t>>;  // compute queued, index
  using Heads = std::array<RequestNumber, kBucketCount>;           // 0: none
  struct Known {
    PullWorker worker;
    Heads told{};
  };
  struct Fan {
    RequestNumber head = 0;
    TimePoint since;
  };

  const WaitingPrefill* head_for(const PullWorker& worker, int bucket) const;
  void list(std::size_t index, const PullWorker& worker, bool is_listed);
  std::size_t fan_out(int bucket, const WaitingPrefill& head, TimePoint now);
  void choose_listeners(int bucket, std::size_t most, std::int64_t kv_blocks,
                        std::set<std::size_t>& chosen) const;

  PrefillQueue queue_;
  std::vector<Known> workers_;
  Wanting wanting_;
  std::array<Wanting, kBucketCount> serving_;  // of wanting_, by bucket
  std::array<Fan, kBucketCount> fans_;
  std::optional<TimePoint> next_news_;
};

}  // namespace millrace::dataplane::routing
