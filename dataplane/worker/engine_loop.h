#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "dataplane/worker/command_queue.h"
#include "dataplane/worker/core.h"
#include "dataplane/worker/importer.h"
#include "dataplane/worker/kv_link.h"

namespace millrace::dataplane::worker {

/// Where the engine thread's results go. Called on that thread; must not block.
class BatchSink {
 public:
  virtual ~BatchSink() = default;
  /// One batch per open stream; those without events carry news of the load only.
  virtual void deliver(std::vector<StreamBatch> batches, Load load) = 0;
  /// The engine has let go of the stream: nothing of it is left.
  virtual void on_stream_closed(StreamId stream) = 0;
};

/// The engine thread: takes commands, runs the core's turns, hands out what they want done. The
/// core and its engine belong to this thread from construction to destruction.
class EngineLoop {
 public:
  /// Everything passed must outlive the loop; kv: null without a KV store. The thread runs when the
  /// constructor returns.
  EngineLoop(Core& core, CommandQueue& commands, Importer& importer, KvLink* kv, BatchSink& sink,
             const transfer::ExportTable& exports, Registry& metrics, const Logger& log);
  /// Stops after the turn under way and joins.
  ~EngineLoop();

  /// Waits until a drain was begun and no request and no export is left. False at the timeout.
  bool wait_drained(std::chrono::milliseconds timeout);

 private:
  struct Metrics {
    explicit Metrics(Registry& registry);
    Gauge running;
    Gauge waiting;
    Gauge waiting_tokens;
    Gauge blocks_used;
    Gauge blocks_capacity;
    Gauge exports_pinned;
    Gauge export_bytes;
    Histogram step_tokens;
    Histogram step_seconds;
    Counter prefill_tokens;
    Counter generated_tokens;
    Counter exports;
    Counter expired_exports;
    Counter cancelled;
    Counter cached_tokens;
    Counter replayed_tokens;
    Counter late_fetches;
    Counter failed_swap_ins;
    Counter swapped_blocks;
    Counter swap_seconds;
    Counter swap_wait_seconds;
    MetricFamily<Counter> replays;
    MetricFamily<Counter> imports;
    Counter refits;
    MetricFamily<Counter> failures;
  };

  void run();
  void turn(std::vector<Command> commands);
  void pass_on_kv_jobs();
  void publish_load(const Load& load);
  void publish_swap_ins();
  void publish(const TurnOutput& output, double seconds);
  void learn(cost::PrefillSample step, double seconds);

  Core& core_;
  CommandQueue& commands_;
  Importer& importer_;
  KvLink* const kv_;
  BatchSink& sink_;
  const transfer::ExportTable& exports_;
  const Metrics metrics_;
  const Logger log_;

  engine::SwapInUsage published_;  // what the counters have of it

  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_stopping_ = false;  // guarded by mutex_
  bool is_drained_ = false;   // guarded by mutex_
  std::thread thread_;
};

}  // namespace millrace::dataplane::worker
