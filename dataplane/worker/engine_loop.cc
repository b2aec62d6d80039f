#include "dataplane/worker/engine_loop.h"

#include <chrono>
#include <string>
#include <string_view>
#include <utility>

namespace millrace::dataplane::worker {
namespace {

using Clock = std::chrono::steady_clock;

/// An idle worker looks at deadlines and at the age of exports this often.
constexpr auto kIdleWait = std::chrono::milliseconds(50);
/// A finished prefill looks for room among the exports this often.
constexpr auto kHoldingWait = std::chrono::milliseconds(5);

struct FailureReason {
  absl::StatusCode code;
  std::string_view name;
};

constexpr FailureReason kFailureReasons[] = {
    {absl::StatusCode::kInvalidArgument, "invalid_argument"},
    {absl::StatusCode::kFailedPrecondition, "failed_precondition"},
    {absl::StatusCode::kAlreadyExists, "already_exists"},
    {absl::StatusCode::kResourceExhausted, "resource_exhausted"},
    {absl::StatusCode::kUnavailable, "unavailable"},
    {absl::StatusCode::kDeadlineExceeded, "deadline_exceeded"},
    {absl::StatusCode::kDataLoss, "data_loss"},
    {absl::StatusCode::kInternal, "internal"},
};
constexpr std::string_view kOtherReason = "other";

std::string_view reason_of(absl::StatusCode code) {
  for (const FailureReason& reason : kFailureReasons) {
    if (reason.code == code) return reason.name;
  }
  return kOtherReason;
}

std::vector<std::string> reason_names() {
  std::vector<std::string> names;
  for (const FailureReason& reason : kFailureReasons) names.emplace_back(reason.name);
  names.emplace_back(kOtherReason);
  return names;
}

std::vector<std::string> replay_names() {
  std::vector<std::string> names;
  names.reserve(kv::kReplayKinds);
  for (int i = 0; i < kv::kReplayKinds; ++i) {
    names.emplace_back(kv::replay_kind_name(static_cast<kv::ReplayKind>(i)));
  }
  return names;
}

}  // namespace

EngineLoop::Metrics::Metrics(Registry& r)
    : running(r.gauge("millrace_requests_running", "Requests that own a sequence.")),
      waiting(r.gauge("millrace_requests_waiting", "Requests in the waiting queue.")),
      waiting_tokens(r.gauge("millrace_waiting_tokens",
                             "Prompt tokens queued, and left of running prefills.")),
      blocks_used(r.gauge("millrace_kv_blocks_used", "KV blocks reserved by running requests.")),
      blocks_capacity(r.gauge("millrace_kv_blocks_capacity", "KV blocks of the pool.")),
      exports_pinned(
          r.gauge("millrace_kv_exports_pinned", "Handed-over sequences kept for their fetch.")),
      export_bytes(r.gauge("millrace_kv_export_bytes", "Shared memory that exports hold.")),
      step_tokens(r.histogram("millrace_step_tokens", "Rows of one engine step.",
                              power_of_two_buckets(8192))),
      step_seconds(r.histogram("millrace_step_seconds", "Time of one engine step with sampling.",
                               latency_buckets_seconds())),
      prefill_tokens(r.counter("millrace_prefill_tokens_total", "Prompt tokens run.")),
      generated_tokens(r.counter("millrace_generated_tokens_total", "Tokens sampled.")),
      exports(r.counter("millrace_kv_exports_total", "Sequences handed over.")),
      expired_exports(r.counter("millrace_kv_exports_expired_total",
                                "Hand-overs dropped because nobody fetched them in time.")),
      cancelled(r.counter("millrace_requests_cancelled_total",
                          "Requests ended by their entrypoint or with its stream.")),
      cached_tokens(r.counter("millrace_prefill_cached_tokens_total",
                              "Prompt tokens that were not run, as their KV was stored.")),
      replayed_tokens(r.counter("millrace_prefill_replayed_tokens_total",
                                "Prompt tokens whose KV was stored and which ran for their sliding "
                                "window alone.")),
      late_fetches(r.counter("millrace_kv_late_fetches_total",
                             "Fetches of stored KV that were given up at the end of their time.")),
      failed_swap_ins(r.counter("millrace_kv_failed_swap_ins_total",
                                "Prefills that began again because stored KV was not whole.")),
      swapped_blocks(r.counter("millrace_kv_swapped_in_blocks_total",
                               "Stored blocks that were brought into sequences.")),
      swap_seconds(r.counter("millrace_kv_swap_in_seconds_total",
                             "Time spent on copying stored blocks into sequences.")),
      swap_wait_seconds(r.counter("millrace_kv_swap_in_wait_seconds_total",
                                  "Time for which steps stood still for stored blocks.")),
      replays(r.counter("millrace_prefills_begun_total",
                        "Prefills by where their first window comes from.",
                        {{"window", replay_names()}})),
      imports(r.counter("millrace_kv_imports_total", "Sequences brought in.",
                        {{"path", {"shared_memory", "stream"}}})),
      refits(r.counter("millrace_prefill_cost_refits_total",
                       "Times that measured steps gave a better prefill cost model.")),
      failures(r.counter("millrace_requests_failed_total", "Requests refused or failed.",
                         {{"reason", reason_names()}})) {}

EngineLoop::EngineLoop(Core& core, CommandQueue& commands, Importer& importer, KvLink* kv,
                       BatchSink& sink, const transfer::ExportTable& exports, Registry& metrics,
                       const Logger& log)
    : core_(core),
      commands_(commands),
      importer_(importer),
      kv_(kv),
      sink_(sink),
      exports_(exports),
      metrics_(metrics),
      log_(log) {
  thread_ = std::thread([this] { run(); });
}

EngineLoop::~EngineLoop() {
  {
    std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  commands_.wake();
  thread_.join();
}

bool EngineLoop::wait_drained(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, timeout, [&] { return is_drained_; });
}

void EngineLoop::run() {
  for (;;) {
    auto wait = std::chrono::nanoseconds(kIdleWait);
    if (core_.has_rows()) {
      wait = std::chrono::nanoseconds::zero();
    } else if (core_.is_holding()) {
      wait = kHoldingWait;
    }
    std::vector<Command> commands = commands_.pop_all(wait);
    {
      std::lock_guard lock(mutex_);
      if (is_stopping_) return;
    }
    turn(std::move(commands));
    if (core_.is_draining()) {
      std::lock_guard lock(mutex_);
      is_drained_ = core_.is_idle();
      if (is_drained_) changed_.notify_all();
    }
  }
}

void EngineLoop::turn(std::vector<Command> commands) {
  std::vector<StreamId> closed;
  for (Command& command : commands) {
    if (const auto* close = std::get_if<CloseStream>(&command)) closed.push_back(close->stream);
    core_.on_command(std::move(command));
  }
  // Before the step too: what was cancelled is gone now, what was asked for can be fetched, and the
  // step may be long.
  if (!commands.empty()) publish_load(core_.load());
  pass_on_kv_jobs();
  const auto start = Clock::now();
  TurnOutput output = core_.run_turn(start);
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  for (ImportJob& job : output.imports) importer_.import(std::move(job));
  for (ReleaseJob& job : output.releases) importer_.release(std::move(job));
  pass_on_kv_jobs();
  const Load load = core_.load();
  publish_load(load);
  publish_swap_ins();
  publish(output, seconds);
  sink_.deliver(std::move(output.batches), load);
  for (const StreamId stream : closed) sink_.on_stream_closed(stream);
}

void EngineLoop::pass_on_kv_jobs() {
  if (kv_ != nullptr) kv_->take(core_.take_kv_jobs());
}

void EngineLoop::publish_load(const Load& load) {
  metrics_.running.set(load.running);
  metrics_.waiting.set(load.waiting);
  metrics_.waiting_tokens.set(static_cast<double>(load.waiting_tokens));
  metrics_.blocks_used.set(load.kv_blocks_used);
  metrics_.blocks_capacity.set(load.kv_blocks_total);
  const transfer::ExportUsage exports = exports_.usage();
  metrics_.exports_pinned.set(exports.exports);
  metrics_.export_bytes.set(static_cast<double>(exports.bytes));
}

void EngineLoop::publish_swap_ins() {
  const engine::SwapInUsage now = core_.swap_in_usage();
  metrics_.swapped_blocks.add(static_cast<double>(now.blocks - published_.blocks));
  metrics_.swap_seconds.add(now.copy_seconds - published_.copy_seconds);
  metrics_.swap_wait_seconds.add(now.wait_seconds - published_.wait_seconds);
  published_ = now;
}

void EngineLoop::learn(cost::PrefillSample step, double seconds) {
  step.ns = seconds * 1e9;
  if (!core_.on_step_measured(step)) return;
  const cost::CostModel& model = core_.prefill_cost();
  metrics_.refits.add();
  log_.info("prefill_cost", {{"quadratic_ns", model.quadratic},
                             {"cross_ns", model.cross},
                             {"linear_ns", model.linear},
                             {"fixed_ns", model.fixed},
                             {"tail_ns", model.tail},
                             {"tail_cross_ns", model.tail_cross}});
}

void EngineLoop::publish(const TurnOutput& output, double seconds) {
  const TurnCounts& counts = output.counts;
  if (const int rows = counts.prefill_rows + counts.decode_rows; rows > 0) {
    metrics_.step_tokens.observe(rows);
    metrics_.step_seconds.observe(seconds);
  }
  if (counts.prefill_rows > 0 && counts.decode_rows == 0) learn(counts.prefill_step, seconds);
  metrics_.prefill_tokens.add(counts.prefill_rows);
  metrics_.generated_tokens.add(counts.sampled_tokens);
  metrics_.exports.add(counts.exports);
  metrics_.expired_exports.add(counts.expired_exports);
  metrics_.cancelled.add(counts.cancelled_requests);
  metrics_.cached_tokens.add(counts.cached_tokens);
  metrics_.replayed_tokens.add(counts.replayed_tokens);
  metrics_.late_fetches.add(counts.late_fetches);
  metrics_.failed_swap_ins.add(counts.failed_swap_ins);
  for (int i = 0; i < kv::kReplayKinds; ++i) {
    metrics_.replays.with({kv::replay_kind_name(static_cast<kv::ReplayKind>(i))})
        .add(counts.replays[static_cast<std::size_t>(i)]);
  }
  metrics_.imports.with({"shared_memory"}).add(counts.imports_mapped);
  metrics_.imports.with({"stream"}).add(counts.imports_streamed);
  for (const absl::StatusCode code : counts.failures) {
    metrics_.failures.with({reason_of(code)}).add();
  }
  if (!counts.internal_error.empty()) {
    log_.error("engine_failed", {{"reason", counts.internal_error}});
  }
  for (const StreamBatch& batch : output.batches) {
    for (const Event& event : batch.events) {
      const auto* failed = std::get_if<Failed>(&event.what);
      if (failed == nullptr) continue;
      log_.debug("request_failed", {{"request_id", event.key.request_id},
                                    {"attempt", event.key.attempt},
                                    {"reason", reason_of(failed->status.code())}});
    }
  }
  if (counts.expired_exports > 0) {
    log_.warn("kv_exports_expired", {{"count", counts.expired_exports}});
  }
}

}  // namespace millrace::dataplane::worker
