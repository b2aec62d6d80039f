#include "dataplane/worker/importer.h"

#include <chrono>
#include <utility>

namespace millrace::dataplane::worker {

Importer::Importer(transfer::KvClient& client, CommandQueue& commands, Registry& metrics,
                   const Logger& log, const Limits& limits)
    : client_(client),
      commands_(commands),
      log_(log),
      import_seconds_(metrics.histogram("millrace_kv_import_seconds",
                                        "Time to fetch and verify one hand-over.",
                                        latency_buckets_seconds())),
      releases_(metrics.counter("millrace_kv_releases_total",
                                "Copies that their source was told to drop.",
                                {{"result", {"done", "failed", "dropped"}}})),
      imports_(limits.max_imports),
      release_jobs_(limits.max_releases) {
  for (int i = 0; i < limits.fetch_threads; ++i) threads_.emplace_back([this] { fetch_loop(); });
  threads_.emplace_back([this] { release_loop(); });
}

Importer::~Importer() {
  is_stopping_ = true;
  imports_.close();
  release_jobs_.close();
  for (std::thread& thread : threads_) thread.join();
}

void Importer::import(ImportJob job) {
  const std::uint64_t request = job.request;
  if (imports_.try_push(std::move(job))) return;
  commands_.push_control(
      ImportDone{request, absl::ResourceExhaustedError("too many hand-overs are being fetched")});
}

void Importer::release(ReleaseJob job) {
  if (!release_jobs_.try_push(std::move(job))) releases_.with({"dropped"}).add();
}

void Importer::fetch_loop() {
  while (std::optional<ImportJob> job = imports_.pop()) {
    if (is_stopping_ || job->cancel->load()) continue;
    const auto start = std::chrono::steady_clock::now();
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(job->deadline - start);
    auto bytes =
        client_.fetch(job->handover, std::max(left, std::chrono::milliseconds(1)), *job->cancel);
    import_seconds_.observe(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    if (job->cancel->load()) continue;
    commands_.push_control(ImportDone{job->request, std::move(bytes)});
  }
}

void Importer::release_loop() {
  while (std::optional<ReleaseJob> job = release_jobs_.pop()) {
    // Also while stopping, as long as it is quick: a source that is told need not wait.
    if (is_stopping_ && release_jobs_.size() > 64) continue;
    const absl::Status status = client_.release(job->source_address, job->export_id);
    releases_.with({status.ok() ? "done" : "failed"}).add();
    if (!status.ok()) {
      log_.debug("kv_release_failed", {{"source", job->source_address},
                                       {"export_id", job->export_id},
                                       {"reason", std::string(status.message())}});
    }
  }
}

}  // namespace millrace::dataplane::worker
