#pragma once

#include <thread>
#include <vector>

#include "common/log/log.h"
#include "common/mailbox.h"
#include "common/metrics/metrics.h"
#include "dataplane/transfer/kv_client.h"
#include "dataplane/worker/command_queue.h"
#include "dataplane/worker/core.h"

namespace millrace::dataplane::worker {

/// Fetches hand-overs and tells sources to drop theirs, on threads of its own, so that the engine
/// never waits for a peer. Answers each import with an ImportDone in the command queue, unless it
/// was cancelled. Several fetch threads, so that one source that hangs (until its timeout) does not
/// hold up the others.
class Importer {
 public:
  struct Limits {
    int fetch_threads = 4;
    std::size_t max_imports = 1024;
    std::size_t max_releases = 4096;
  };

  /// `client` and `commands` must outlive it.
  Importer(transfer::KvClient& client, CommandQueue& commands, Registry& metrics, const Logger& log,
           const Limits& limits);
  /// Waits for the fetch and the release under way; drops the rest (a source's time to live, or our
  /// end, settles it).
  ~Importer();

  /// Answers kResourceExhausted at once when too many wait.
  void import(ImportJob job);
  /// Dropped when too many wait; the source's time to live then does it.
  void release(ReleaseJob job);

 private:
  void fetch_loop();
  void release_loop();

  transfer::KvClient& client_;
  CommandQueue& commands_;
  const Logger log_;
  const Histogram import_seconds_;
  const MetricFamily<Counter> releases_;
  Mailbox<ImportJob> imports_;
  Mailbox<ReleaseJob> release_jobs_;
  std::atomic<bool> is_stopping_{false};
  std::vector<std::thread> threads_;
};

}  // namespace millrace::dataplane::worker
