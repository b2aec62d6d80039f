#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "api/admin/view.h"
#include "common/time_point.h"
#include "dataplane/cost/cost_model.h"
#include "dataplane/routing/charges.h"
#include "dataplane/routing/decode_rank.h"
#include "dataplane/routing/offer_board.h"
#include "dataplane/routing/push_policy.h"

namespace millrace::api::entrypoint {

/// A worker at the moment of a decision.
struct WorkerState {
  admin::WorkerRole role = admin::WorkerRole::kPrefill;
  bool is_accepting = false;             ///< connected, ready and not draining
  bool wants_more = false;               ///< a prefill worker that would claim, by its last report
  bool has_queue = false;                ///< requests wait there for a sequence or for blocks
  dataplane::routing::Charge load = {};  ///< reported, and charged since
  std::int64_t kv_blocks_total = 0;
};

/// A request that wants a prefill worker.
struct PrefillNeed {
  dataplane::routing::RequestNumber request = 0;  ///< from 1
  std::int64_t tokens = 0;                        ///< to have KV of in the end
  std::int64_t cached = 0;         ///< of those, that probably need not run; less than all
  std::int64_t prompt_tokens = 0;  ///< of those; the others were delivered before
  std::int64_t kv_blocks = 0;      ///< that it takes of the pool
  TimePoint since = {};            ///< when it began to wait
  bool is_new = true;              ///< it was not here before: it counts as demand
};

/// A request that wants a decode worker.
struct DecodeNeed {
  std::int64_t tokens = 0;          ///< its KV now
  std::int64_t kv_blocks = 0;       ///< that it may come to hold
  std::int64_t pending_tokens = 0;  ///< of all requests without a decode worker, this one included
};

/// Which worker serves which request, by one policy. Ours: requests wait here by bucket, a few
/// prefill workers with room are told, and one claims the request (dataplane/routing); the others,
/// for comparison, push each request to a prefill worker at once. Decode workers are always chosen
/// here.
///
/// No I/O, no clock, no lock; the loop's thread. What was decided must be charged, and the worker's
/// new state be told to set_worker(), before the next decision.
class Balancer {
 public:
  struct Options {
    dataplane::routing::Policy policy = dataplane::routing::Policy::kMillrace;
    std::size_t max_waiting = 1 << 20;  ///< for a prefill worker; beyond it add() refuses
    std::uint64_t seed = 0;             ///< of the random choices between equals
  };
  explicit Balancer(const Options& options);

  /// Buckets, their edges and costs of a newer view. Requests that wait keep the bucket that they
  /// came with: edges change with a controller's flags only, and every bucket is served.
  void apply_view(const admin::RoutingView& view);
  /// A worker is new or has changed; one that has gone accepts nothing.
  void set_worker(const std::string& worker_id, const WorkerState& state);
  /// Its stream is a new one: it knows nothing of what was offered.
  void forget_news(const std::string& worker_id);

  /// The request waits from now on. kResourceExhausted names the bound.
  absl::Status add(const PrefillNeed& need);
  /// It waits no more, if it did.
  void remove(dataplane::routing::RequestNumber request) { board_.remove(request); }

  /// A worker claims a request of a bucket: what it gets; nullopt: gone.
  std::optional<dataplane::routing::RequestNumber> grant(const std::string& worker_id, int bucket);

  struct Push {
    dataplane::routing::RequestNumber request = 0;
    std::string worker_id;
  };
  /// With a policy that pushes: a request that waits, and where it goes. nullopt: none waits, or
  /// nobody accepts one.
  std::optional<Push> next_push(TimePoint now);

  /// The offers for a worker, as of now.
  struct News {
    std::string worker_id;
    dataplane::routing::Offers offers{};
    std::array<bool, dataplane::routing::kBucketCount> serves{};
  };
  News news_for(const std::string& worker_id);
  /// Whom to tell what, after any change and at next_news(). Empty with a policy that pushes.
  std::vector<News> take_news(TimePoint now);
  std::optional<TimePoint> next_news() const { return board_.next_news(); }
  std::uint64_t view_version() const { return view_version_; }

  /// A waiting request that no accepting worker's pool could ever hold, though there are some.
  std::optional<dataplane::routing::RequestNumber> hopeless() const;
  /// Whether a worker of that role accepts requests and could hold so many blocks.
  bool could_hold(admin::WorkerRole role, std::int64_t kv_blocks) const;

  /// A decode worker: one with room now, else one to wait at. nullopt: none that accepts requests
  /// could ever hold it.
  std::optional<std::string> choose_decode(const DecodeNeed& need);

  /// Predicted compute of a chunk, ns, by the published costs.
  std::int64_t quota_ns(const dataplane::cost::Chunk& chunk) const {
    return dataplane::cost::quota_ns(cost_, chunk);
  }
  /// What came since the beginning, in ns of predicted compute, by bucket.
  const std::array<std::uint64_t, dataplane::routing::kBucketCount>& demand_ns() const {
    return demand_ns_;
  }

 private:
  struct Worker {
    std::string id;
    WorkerState state;
    int bucket = admin::kNoBucket;
  };
  /// The workers of a role, by an index that a worker id keeps for ever.
  struct Role {
    std::vector<Worker> workers;
    std::map<std::string, std::size_t, std::less<>> index_of;
  };

  bool is_pulling() const { return !router_.has_value(); }
  Role& role(admin::WorkerRole role) { return roles_[static_cast<std::size_t>(role)]; }
  const Role& role(admin::WorkerRole role) const { return roles_[static_cast<std::size_t>(role)]; }
  Worker& worker(admin::WorkerRole role, const std::string& worker_id);
  std::array<bool, dataplane::routing::kBucketCount> serves(const Worker& worker) const;
  void show_prefill(std::size_t index);

  std::optional<dataplane::routing::PushRouter> router_;  // nullopt: ours
  std::mt19937_64 random_;
  dataplane::cost::CostModel cost_ = dataplane::cost::kUnmeasuredCost;
  dataplane::routing::BucketEdges edges_;
  std::uint64_t view_version_ = 0;
  std::array<Role, 2> roles_;
  std::array<int, dataplane::routing::kBucketCount> bucket_workers_{};
  dataplane::routing::OfferBoard board_;
  dataplane::routing::DecodeBoard decode_;
  std::array<std::uint64_t, dataplane::routing::kBucketCount> demand_ns_{};
};

}  // namespace millrace::api::entrypoint
