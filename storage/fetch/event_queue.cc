#include "storage/fetch/event_queue.h"

#include <utility>
#include <variant>

namespace millrace::storage::fetch {
namespace {

/// How much of the bound a command takes: what grows with what an engine sends.
std::size_t keys_of(const FetchEvent& command) {
  if (const auto* fetch = std::get_if<FetchBlocks>(&command)) return fetch->keys.size();
  if (const auto* release = std::get_if<ReleaseBlocks>(&command))
    return release->indices.size() / 8;
  return 0;
}

}  // namespace

bool EventQueue::try_push_command(FetchEvent&& command) {
  const std::size_t keys = keys_of(command);
  {
    std::lock_guard lock(mutex_);
    if (command_count_ >= limits_.max_commands) return false;
    // One that is larger than the bound may still pass, alone: the core says what is wrong with it.
    if (key_count_ > 0 && key_count_ + keys > limits_.max_keys) return false;
    ++command_count_;
    key_count_ += keys;
    queue_.push_back(std::move(command));
  }
  ready_.notify_one();
  return true;
}

void EventQueue::push(FetchEvent&& event) {
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(event));
  }
  ready_.notify_one();
}

std::vector<FetchEvent> EventQueue::pop_all(std::chrono::nanoseconds timeout) {
  std::unique_lock lock(mutex_);
  if (timeout > std::chrono::nanoseconds::zero()) {
    ready_.wait_for(lock, timeout, [&] { return is_woken_ || !queue_.empty(); });
  }
  is_woken_ = false;
  command_count_ = 0;
  key_count_ = 0;
  return std::exchange(queue_, {});
}

void EventQueue::wake() {
  {
    std::lock_guard lock(mutex_);
    is_woken_ = true;
  }
  ready_.notify_one();
}

}  // namespace millrace::storage::fetch
