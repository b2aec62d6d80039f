#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "dataplane/cost/fit_window.h"
#include "dataplane/engine/engine.h"
#include "dataplane/kv/hit_policy.h"
#include "dataplane/sampling/sampler.h"
#include "dataplane/scheduler/scheduler.h"
#include "dataplane/transfer/export_table.h"
#include "dataplane/worker/command.h"

namespace millrace::dataplane::worker {

struct CoreConfig {
  Role role = Role::kPrefill;
  std::string worker_id;
  std::string host_id;
  std::string transfer_address;     ///< host:port under which others fetch our exports
  std::vector<TokenId> eos_tokens;  ///< end a text unless the request ignores them
  scheduler::SchedulerLimits limits;
  /// How long a request waits for its stored KV before it begins with what is there.
  std::chrono::milliseconds kv_fetch_timeout{2000};
  /// What prefill costs here, if it was measured before; else it is found out.
  std::optional<cost::CostModel> prefill_cost = std::nullopt;
};

/// KV to be fetched for an admitted request. Whoever takes the job answers with ImportDone, unless
/// the flag is set by then.
struct ImportJob {
  std::uint64_t request = 0;
  transfer::Handover handover;
  TimePoint deadline;
  std::shared_ptr<transfer::CancelFlag> cancel;
};

/// A source that may drop its copy.
struct ReleaseJob {
  std::string source_address;
  std::uint64_t export_id = 0;
};

/// Stored blocks and a window to be fetched for a waiting request. Whoever takes the job answers
/// with KvFetched, unless it is cancelled.
struct KvFetchJob {
  std::uint64_t request = 0;
  std::vector<storage::BlockKey> keys;  ///< of the blocks, from the first on
  std::vector<WindowSource> windows;    ///< to be tried in this order until one can be had
  std::chrono::milliseconds timeout{0};

  /// Of the block that ends at a window's anchor.
  const storage::BlockKey& key_at(int anchor) const {
    return keys[static_cast<std::size_t>(anchor / kv::kBlockTokens) - 1];
  }
};
/// A block that is full: to be stored, or dropped.
struct KvSealJob {
  storage::BlockKey key;
  std::uint32_t depth = 0;  ///< in its chain
  storage::TtlClass ttl = storage::TtlClass::kAgent;
  std::vector<std::byte> bytes;
};
/// A window to be kept for a later turn, or dropped. Answered with WindowStored if it was kept.
struct KvWindowJob {
  StreamId stream = 0;
  storage::BlockKey key;  ///< of the block that ends at the anchor
  int anchor = 0;
  std::vector<std::byte> bytes;
};
struct KvJobs {
  std::vector<KvFetchJob> fetches;
  std::vector<std::uint64_t> cancels;  ///< fetches that nobody waits for any more
  std::vector<KvSealJob> seals;
  std::vector<KvWindowJob> windows;
};

/// What a turn did, for metrics.
struct TurnCounts {
  int prefill_rows = 0;
  int decode_rows = 0;
  int sampled_tokens = 0;
  int cancelled_requests = 0;
  int imports_mapped = 0;
  int imports_streamed = 0;
  int exports = 0;
  int expired_exports = 0;
  std::array<int, kv::kReplayKinds> replays{};  ///< prefills begun, by how their window came about
  int cached_tokens = 0;                        ///< prompt tokens that need not run
  int replayed_tokens = 0;                      ///< run again for their window alone
  int late_fetches = 0;                         ///< given up at the end of their time
  int failed_swap_ins = 0;                      ///< prefills that had to start over cold
  cost::PrefillSample prefill_step;             ///< the step's chunks, if it was all prefill
  std::vector<absl::StatusCode> failures;
  std::string internal_error;  ///< the last kInternal failure: something here is broken
};

/// Everything a turn wants done.
struct TurnOutput {
  std::vector<StreamBatch> batches;  ///< one per open stream, by stream id; events may be empty
  std::vector<ImportJob> imports;
  std::vector<ReleaseJob> releases;
  TurnCounts counts;
};

/// The life of requests on one engine: admission, steps, sampling, hand-over. No thread, no socket,
/// no clock; owned by the engine thread (or a test). Its only effects are on the engine and on the
/// export table.
///
/// A prefill whose prompt has stored KV waits for it in the queue, for a bounded time, and begins
/// with what has come; whatever goes wrong with it, the request runs as if nothing had been stored.
///
/// Every request ends in exactly one of: an event with a finish reason, a hand-over, Failed, a
/// Cancel, the close of its stream. Then nothing of it is left: no sequence, no block, no export
/// (a hand-over lives on until released, cancelled or over its time).
class Core {
 public:
  static absl::StatusOr<std::unique_ptr<Core>> create(const CoreConfig& config,
                                                      engine::Engine& engine,
                                                      transfer::ExportTable& exports);

  /// Takes up one command. Events it causes appear in the output of the next turn.
  void on_command(Command command);

  /// Ends what is over its deadline, admits, runs one step, samples, hands over.
  TurnOutput run_turn(TimePoint now);

  /// What is to be fetched and stored since the last call. Fetches appear at once with their
  /// command, the rest with turns.
  KvJobs take_kv_jobs();

  /// How long the step took that a turn's counts describe. Every 64th one, the costs that prefill
  /// chunks are cut by are fitted anew to the last steps, and taken over when they describe them
  /// better; true then.
  bool on_step_measured(cost::PrefillSample step);
  const cost::CostModel& prefill_cost() const { return prefill_cost_; }

  /// How well bringing stored blocks in has hidden behind steps so far.
  engine::SwapInUsage swap_in_usage() const { return engine_.swap_in_usage(); }

  /// There are rows to run: begin the next turn at once.
  bool has_rows() const;
  /// A finished prefill waits for room among the exports.
  bool is_holding() const { return !held_.empty(); }
  /// No request and no export: a draining worker may end.
  bool is_idle() const;
  bool is_draining() const { return is_draining_; }
  Load load() const;

 private:
  using RequestId = scheduler::RequestId;

  struct Request {
    RequestSpec spec;
    scheduler::Work work = scheduler::Work::kPrefill;
    engine::SequenceId sequence = -1;
    sampling::TokenCounts counts;
    sampling::Sample first_token;                         // kPrefill, once sampled
    transfer::Handover handover;                          // kDecode
    std::shared_ptr<transfer::CancelFlag> import_cancel;  // kDecode, while its KV is on its way
    bool owes_release = false;  // kDecode: the source still keeps its copy for us

    kv::HitPlan hit;                              // kPrefill
    TimePoint fetch_until{};                      // kPrefill, while its stored KV is on its way
    std::shared_ptr<engine::BlockSource> stored;  // kPrefill, until its blocks are swapped in
    std::vector<std::byte> window;                // kPrefill, until it is restored
    int sealed_blocks = 0;                        // that are stored, or passed on to be
  };

  Core(const CoreConfig& config, engine::Engine& engine, transfer::ExportTable& exports,
       scheduler::Scheduler scheduler);

  void start(RequestSpec spec, scheduler::Work work, const transfer::Handover* handover);
  absl::Status check(const RequestSpec& spec, scheduler::Work work,
                     const transfer::Handover* handover) const;
  void on_import_done(ImportDone done);
  absl::Status take_in(Request& request, absl::StatusOr<transfer::KvBytes> bytes);
  void admit(RequestId id);
  absl::Status create_sequence(Request& request);
  void run_step(TimePoint now);
  void on_sampled(RequestId id, sampling::Sample token, TimePoint now);
  bool try_hand_over(RequestId id, TimePoint now);
  std::span<const TokenId> too_early(const Request& running);
  FinishReason finish_reason(const Request& request, TokenId token) const;

  // core_kv.cc
  int fetchable_tokens(const RequestSpec& spec) const;
  void begin_fetch(RequestId id, int tokens);
  void end_late_fetches(TimePoint now);
  void on_kv_fetched(KvFetched fetched);
  absl::Status bring_in_stored(Request& request);
  bool settle_swap_in(RequestId id);
  void seal_full_blocks(Request& request);
  void leave_window(const Request& request);

  void emit(StreamId stream, Event event);
  void fail(RequestId id, const absl::Status& status);
  void refuse(const RequestSpec& spec, const absl::Status& status);
  void cancel(RequestId id);
  void forget(RequestId id);
  Request& request(RequestId id);

  const CoreConfig config_;
  engine::Engine& engine_;
  transfer::ExportTable& exports_;
  scheduler::Scheduler scheduler_;

  std::map<RequestId, Request> requests_;
  std::map<std::pair<StreamId, RequestKey>, RequestId> by_key_;
  std::map<StreamId, StreamBatch> streams_;
  std::vector<RequestId> held_;
  std::set<RequestId> fetching_;  // whose stored KV is on its way
  RequestId next_id_ = 1;
  bool is_draining_ = false;
  TurnOutput output_;
  KvJobs kv_jobs_;

  cost::FitWindow fit_window_;
  int steps_since_fit_ = 0;
  bool is_cost_known_ = false;
  cost::CostModel prefill_cost_;

  std::vector<float> logits_;
  sampling::SamplerScratch scratch_;
  std::vector<TokenId> too_early_;
};

}  // namespace millrace::dataplane::worker
