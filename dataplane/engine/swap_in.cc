#include "dataplane/engine/swap_in.h"

#include <utility>

#include "common/check.h"
#include "common/status_macros.h"

namespace millrace::dataplane::engine {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

SwapIns::SwapIns(const kv::BlockLayout& layout, int slots)
    : layout_(layout), jobs_(static_cast<std::size_t>(slots)), thread_([this] { run(); }) {}

SwapIns::~SwapIns() {
  {
    std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void SwapIns::begin(int slot, std::vector<std::span<std::byte>> targets,
                    std::shared_ptr<BlockSource> source) {
  auto job = std::make_shared<Job>();
  job->targets = std::move(targets);
  job->source = std::move(source);
  {
    std::lock_guard lock(mutex_);
    std::shared_ptr<Job>& place = jobs_[static_cast<std::size_t>(slot)];
    CHECK(place == nullptr, "a sequence is swapped in once");
    place = job;
    usage_.blocks += job->targets.size();
    queue_.push_back(std::move(job));
  }
  wake_.notify_all();
}

void SwapIns::wait(int slot, int layer) {
  std::unique_lock lock(mutex_);
  const std::shared_ptr<Job>& job = jobs_[static_cast<std::size_t>(slot)];
  if (job == nullptr || job->is_over) return;
  int needed = 0;
  while (layout_.sources()[static_cast<std::size_t>(needed)].layer != layer) ++needed;
  const auto is_in = [&] { return job->is_over || job->sources_done > needed; };
  if (is_in()) return;
  const Clock::time_point start = Clock::now();
  changed_.wait(lock, is_in);
  usage_.wait_seconds += seconds_since(start);
}

absl::Status SwapIns::status(int slot) const {
  std::lock_guard lock(mutex_);
  const std::shared_ptr<Job>& job = jobs_[static_cast<std::size_t>(slot)];
  return job == nullptr ? absl::OkStatus() : job->status;
}

void SwapIns::cancel(int slot) {
  std::unique_lock lock(mutex_);
  std::shared_ptr<Job> job = std::exchange(jobs_[static_cast<std::size_t>(slot)], nullptr);
  if (job == nullptr) return;
  job->is_over = true;
  std::erase_if(queue_, [&](const std::shared_ptr<Job>& queued) {
    return queued == job && !(is_copying_ && queued == queue_.front());
  });
  changed_.wait(lock, [&] { return !is_copying_ || queue_.front() != job; });
}

SwapInUsage SwapIns::usage() const {
  std::lock_guard lock(mutex_);
  return usage_;
}

void SwapIns::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return is_stopping_ || !queue_.empty(); });
    if (is_stopping_) return;
    const std::shared_ptr<Job> job = queue_.front();
    is_copying_ = true;
    while (!job->is_over && !is_stopping_) {
      const auto index = static_cast<std::size_t>(job->sources_done);
      const Clock::time_point start = Clock::now();
      lock.unlock();
      const absl::Status status = copy_part(*job, index);
      lock.lock();
      usage_.copy_seconds += seconds_since(start);
      job->status = status;
      ++job->sources_done;
      const bool is_last = index + 1 == layout_.sources().size();
      if (!status.ok() || is_last) job->is_over = true;
      changed_.notify_all();
    }
    is_copying_ = false;
    queue_.pop_front();
    job->source.reset();
    changed_.notify_all();
  }
}

/// What a KV source layer keeps lies in one piece: from its first plane to that of the next one.
absl::Status SwapIns::copy_part(const Job& job, std::size_t source_index) const {
  const std::vector<kv::SourceLayout>& sources = layout_.sources();
  const std::size_t begin = sources[source_index].entries.offset;
  const std::size_t end = source_index + 1 < sources.size()
                              ? sources[source_index + 1].entries.offset
                              : layout_.block_bytes();
  for (std::size_t block = 0; block < job.targets.size(); ++block) {
    RETURN_IF_ERROR(job.source->copy(static_cast<int>(block), begin,
                                     job.targets[block].subspan(begin, end - begin)));
  }
  return absl::OkStatus();
}

}  // namespace millrace::dataplane::engine
