#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dataplane/routing/prefill_claim.h"
#include "dataplane/routing/prefill_queue.h"
#include "dataplane/routing/push_policy.h"
#include "tests/sim/cluster/core_shares.h"
#include "tests/sim/cluster/decode_fleet.h"
#include "tests/sim/cluster/event_heap.h"
#include "tests/sim/cluster/load_view.h"
#include "tests/sim/cluster/prefill_fleet.h"
#include "tests/sim/cluster/simulate_cluster.h"

namespace millrace::sim {

/// The cluster of one run: entrypoints, prefill and decode instances, storage, and what travels
/// between them. One thread; every choice that a policy makes is made by production code.
class ClusterWorld {
 public:
  ClusterWorld(const Scenario& scenario, const PolicyChoice& policy,
               std::span<const Arrival> arrivals, std::uint64_t seed);

  /// Runs until every request has ended, or the drain has.
  ClusterOutcome run(const std::function<void(double)>& progress);

 private:
  enum Kind : std::uint8_t {
    kArrival,      // a: request
    kClaim,        // a: instance, b: entrypoint × 4 + bucket
    kGrant,        // a: instance, b: request
    kNothing,      // a: instance; its claim found nothing
    kPush,         // a: target, b: request
    kFetched,      // a: rank, b: request
    kPrefillStep,  // a: instance, b: its epoch
    kHandover,     // a: rank, b: request
    kDecodeStep,   // a: instance, b: its epoch
    kReport,       // a round of reports is taken
    kDeliver,      // and arrives; a: 1 = of prefill targets, 0 = of decode ranks
    kSplit,        // buckets are re-split
    kRetry,        // a: request; it starts over
    kFault,        // a: index
    kFaultEnds,    // a: index
    kSample,
  };

  /// What a request is doing, beside what becomes of it.
  struct Request {
    std::int64_t input_tokens = 0;  // grows by what was delivered when it starts over
    std::int64_t cached_tokens = 0;
    std::int64_t tokens_left = 0;  // of the output
    std::int64_t quota_ns = 0;
    std::int64_t charged_tokens = 0;  // at its prefill rank, as an overlap-credit router counts
    std::int64_t announced_kv = 0;    // at its decode rank, until its KV arrives
    std::int32_t parent = -1;
    std::int32_t prefill_target = -1;  // rank or instance charged at the moment
    std::int32_t prefill_rank = -1;    // where it ran last
    std::int32_t decode_rank = -1;
    std::uint32_t attempt = 0;
    int bucket = 0;
    bool is_fetching = false;
    bool is_late = false;  // its KV will not be there in time
  };

  struct Instance {
    bool is_up = true;
    bool is_claiming = false;
    std::uint32_t epoch = 0;
    int bucket = 0;
    std::size_t turn = 0;  // of ranks, where they are not chosen
    SimTime storage_free_at = 0;
  };

  struct Entrypoint {
    explicit Entrypoint(std::size_t max_waiting) : queue(max_waiting) {}
    dataplane::routing::PrefillQueue queue;
    std::array<std::int64_t, dataplane::routing::kBucketCount> claimed{};  // claims on their way
    std::int64_t pending_tokens = 0;  // of prompts without a decode rank yet
    std::optional<dataplane::routing::PushRouter> router;
    std::vector<dataplane::routing::PushRank> prefill_ranks;  // as it knows them
  };

  bool is_ours() const { return policy_.policy == dataplane::routing::Policy::kMillrace; }
  bool has_late_decode() const { return scenario_.late_decode_choice != 0; }
  bool is_pulling() const { return is_ours() && policy_.has_pull; }
  std::size_t target_count() const;  // that prefill is charged to
  void at(SimTime at, Kind kind, std::size_t a = 0, std::size_t b = 0);
  void schedule_prefill(std::span<const CoreShares::End> ends);
  void schedule_decode(std::span<const CoreShares::End> ends);
  void handle(const Event& event);
  bool is_counted() const { return now_ >= warmup_ && now_ <= horizon_; }
  TimePoint now_point() const { return TimePoint(std::chrono::nanoseconds(now_)); }

  // Into prefill (cluster_prefill.cc).
  void arrive(RequestIndex request);
  void route(RequestIndex request);
  void offer(RequestIndex request);
  void push(RequestIndex request);
  std::optional<std::size_t> push_target(RequestIndex request, Entrypoint& entrypoint);
  std::optional<std::size_t> least_queued_instance(int bucket, std::size_t entrypoint) const;
  void retry_unplaced();
  void wake_for(std::size_t entrypoint, int bucket);
  dataplane::routing::ClaimLimits claim_limits() const;
  SimTime earliest_start(std::size_t instance) const;
  void try_claim(std::size_t instance);
  void answer_claim(std::size_t instance, std::size_t entrypoint, int bucket);
  void accept_grant(std::size_t instance, RequestIndex request);
  void accept_push(std::size_t target, RequestIndex request);
  std::size_t choose_rank(std::size_t instance);
  void enqueue(std::size_t rank, RequestIndex request);
  SimTime fetch(std::size_t rank, Request& request);
  void fetched(std::size_t rank, RequestIndex request);
  void begin_prefill_step(std::size_t instance);
  void end_prefill_step(std::size_t instance);
  void release_prefill(RequestIndex request);
  void refresh_prefill(std::size_t entrypoint, std::size_t target);
  dataplane::routing::Charge prefill_load(std::size_t target) const;
  std::array<bool, dataplane::routing::kBucketCount> serves(std::size_t instance) const;
  void split_buckets();

  // Into decode, faults, reports (cluster_decode.cc).
  void prefilled(RequestIndex request);
  bool choose_decode(RequestIndex request, std::int64_t pending_tokens);
  void release_decode(RequestIndex request);
  void hand_over(RequestIndex request);
  void accept_handover(std::size_t rank, RequestIndex request);
  void begin_decode_step(std::size_t instance);
  void end_decode_step(std::size_t instance);
  void finish(RequestIndex request);
  void take_reports();
  void deliver_reports(bool is_prefill);
  dataplane::routing::Charge decode_load(std::size_t rank) const;
  void begin_fault(const Fault& fault);
  void end_fault(const Fault& fault);
  void start_over(RequestIndex request);
  void set_prefill_up(std::size_t instance, bool is_up);
  void prefill_down(std::size_t instance);
  void decode_down(std::size_t instance);
  void sample();
  FleetOutcome fleet_outcome(const StepSums& sums, std::size_t ranks) const;

  const Scenario& scenario_;
  PolicyChoice policy_;
  std::span<const Arrival> arrivals_;
  std::mt19937_64 random_;
  EventHeap events_;
  SimTime now_ = 0;
  SimTime delay_ = 0;  // of a message
  SimTime warmup_ = 0;
  SimTime horizon_ = 0;
  std::vector<double> entrypoint_bounds_;  // cumulated shares
  dataplane::routing::PushSettings push_settings_;

  std::vector<Request> requests_;
  std::vector<Entrypoint> entrypoints_;
  PrefillFleet prefill_;
  DecodeFleet decode_;
  CoreShares prefill_cores_;
  CoreShares decode_cores_;
  std::vector<Instance> prefill_instances_;
  std::vector<Instance> decode_instances_;
  LoadView prefill_view_;
  std::vector<dataplane::routing::Charge> on_the_way_;  // to a target
  DecodeView decode_view_;
  std::array<int, dataplane::routing::kBucketCount> bucket_instances_{};
  std::array<std::uint64_t, dataplane::routing::kBucketCount> demand_{};
  std::optional<std::vector<std::uint64_t>> last_demand_;
  std::vector<std::int64_t> decode_requests_;  // charged to a rank
  std::vector<std::int64_t> announced_kv_;     // of those, before their KV arrives
  std::deque<RequestIndex> unplaced_;          // no prefill rank accepts
  std::deque<RequestIndex> decode_waiting_;    // no decode rank has room
  std::int64_t waiting_ = 0;                   // without their first token
  std::int64_t live_ = 0;
  std::size_t next_arrival_ = 0;
  std::vector<RequestIndex> finished_;
  std::vector<std::pair<RequestIndex, std::size_t>> ended_;
  ClusterOutcome outcome_;
};

}  // namespace millrace::sim
