#include "api/tokenizer/encode_pool.h"

#include <algorithm>
#include <atomic>

namespace millrace::api::tokenizer {

/// One run().
struct EncodePool::Loop {
  const std::function<void(std::size_t)>& work;
  std::size_t count;
  std::atomic<std::size_t> next = 0;
  int helpers = 0;  // that are in take_all(), by the pool's mutex

  void take_all() {
    for (std::size_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) work(i);
  }
};

EncodePool::EncodePool(int helpers) {
  for (int i = 0; i < helpers; ++i) helpers_.emplace_back([this] { help(); });
}

EncodePool::~EncodePool() {
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
  }
  work_arrived_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void EncodePool::run(std::size_t count, const std::function<void(std::size_t)>& work) {
  Loop loop{.work = work, .count = count};
  if (helpers_.empty() || count <= 1) return loop.take_all();
  {
    const std::lock_guard lock(mutex_);
    loops_.push_back(&loop);
  }
  // More helpers than calls would find nothing to do.
  for (std::size_t i = 1; i < std::min(count, helpers_.size() + 1); ++i) work_arrived_.notify_one();
  loop.take_all();
  std::unique_lock lock(mutex_);
  std::erase(loops_, &loop);
  helper_left_.wait(lock, [&] { return loop.helpers == 0; });
}

void EncodePool::help() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_arrived_.wait(lock, [&] { return is_closing_ || !loops_.empty(); });
    if (is_closing_) return;
    Loop& loop = *loops_.front();
    ++loop.helpers;
    lock.unlock();
    loop.take_all();
    lock.lock();
    // Nothing of it is left to begin: the next helper should look at another.
    std::erase(loops_, &loop);
    if (--loop.helpers == 0) helper_left_.notify_all();
  }
}

}  // namespace millrace::api::tokenizer
