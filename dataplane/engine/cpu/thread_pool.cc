#include "dataplane/engine/cpu/thread_pool.h"

#include "common/check.h"

namespace millrace::dataplane::engine::cpu {
namespace {

/// Turns of a spinning thread before it sleeps: some tens of microseconds.
constexpr int kSpins = 1000;

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Returns once value is no longer `old`.
std::uint32_t wait_for_change(const std::atomic<std::uint32_t>& value, std::uint32_t old) {
  for (int spin = 0; spin < kSpins; ++spin) {
    const std::uint32_t now = value.load(std::memory_order_acquire);
    if (now != old) return now;
    pause_briefly();
  }
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  CHECK(threads >= 1, "a pool has at least the calling thread");
  for (int thread = 1; thread < threads; ++thread) {
    workers_.emplace_back([this, thread] { work(thread); });
  }
}

ThreadPool::~ThreadPool() {
  stopping_.store(true, std::memory_order_relaxed);
  loop_.fetch_add(1, std::memory_order_release);
  loop_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::start(int count, Call call, void* context) {
  const std::uint32_t loop = loop_.load(std::memory_order_relaxed) + 1;
  call_.store(call, std::memory_order_relaxed);
  context_.store(context, std::memory_order_relaxed);
  const auto tasks = static_cast<std::uint32_t>(count);
  count_.store(tasks, std::memory_order_relaxed);
  done_.store(0, std::memory_order_relaxed);
  ticket_.store(std::uint64_t{loop} << 32 | tasks, std::memory_order_release);
  loop_.store(loop, std::memory_order_release);
  loop_.notify_all();
  take_tasks(loop, 0);
  for (std::uint32_t done = done_.load(std::memory_order_acquire); done != tasks;) {
    done = wait_for_change(done_, done);
  }
}

void ThreadPool::work(int thread) {
  std::uint32_t loop = 0;
  while (true) {
    loop = wait_for_change(loop_, loop);
    if (stopping_.load(std::memory_order_relaxed)) return;
    take_tasks(loop, thread);
  }
}

void ThreadPool::take_tasks(std::uint32_t loop, int thread) {
  std::uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while (true) {
    const Call call = call_.load(std::memory_order_relaxed);
    void* const context = context_.load(std::memory_order_relaxed);
    const std::uint32_t count = count_.load(std::memory_order_relaxed);
    const auto left = static_cast<std::uint32_t>(ticket);
    if (static_cast<std::uint32_t>(ticket >> 32) != loop || left == 0) return;
    if (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel,
                                       std::memory_order_acquire)) {
      continue;
    }
    --ticket;
    call(context, static_cast<int>(count - left), thread);
    // The caller waits for the last one only.
    if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == count) done_.notify_all();
  }
}

}  // namespace millrace::dataplane::engine::cpu
