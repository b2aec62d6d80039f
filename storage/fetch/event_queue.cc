#include "storage/fetch/event_queue.h"

#include <utility>
#include <variant>

namespace millrace::storage::fetch {
namespace {

/// How much of the bounds a command takes: what grows with what an engine sends.
std::size_t keys_of(const LoopEvent& command) {
  const auto* blocks = std::get_if<FetchEvent>(&command);
  if (blocks == nullptr) return 0;
  if (const auto* fetch = std::get_if<FetchBlocks>(blocks)) return fetch->keys.size();
  if (const auto* release = std::get_if<ReleaseBlocks>(blocks)) return release->indices.size() / 8;
  return 0;
}

std::size_t window_bytes_of(const LoopEvent& command) {
  const auto* windows = std::get_if<WindowEvent>(&command);
  const auto* put = windows == nullptr ? nullptr : std::get_if<PutWindow>(windows);
  return put == nullptr ? 0 : put->window.size();
}

}  // namespace

bool EventQueue::try_push_command(LoopEvent&& command) {
  const std::size_t keys = keys_of(command);
  const std::size_t window_bytes = window_bytes_of(command);
  {
    std::lock_guard lock(mutex_);
    if (window_bytes_ + window_bytes > limits_.max_window_bytes ||
        (window_bytes > 0 && command_count_ >= limits_.max_commands)) {
      ++refused_windows_;
      return false;
    }
    if (command_count_ >= limits_.max_commands) return false;
    // One that is larger than the bound may still pass, alone: the core says what is wrong with it.
    if (key_count_ > 0 && key_count_ + keys > limits_.max_keys) return false;
    ++command_count_;
    key_count_ += keys;
    window_bytes_ += window_bytes;
    queue_.push_back(std::move(command));
  }
  ready_.notify_one();
  return true;
}

void EventQueue::push(LoopEvent&& event) {
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(event));
  }
  ready_.notify_one();
}

std::vector<LoopEvent> EventQueue::pop_all(std::chrono::nanoseconds timeout) {
  std::unique_lock lock(mutex_);
  if (timeout > std::chrono::nanoseconds::zero()) {
    ready_.wait_for(lock, timeout, [&] { return is_woken_ || !queue_.empty(); });
  }
  is_woken_ = false;
  command_count_ = 0;
  key_count_ = 0;
  window_bytes_ = 0;
  return std::exchange(queue_, {});
}

void EventQueue::wake() {
  {
    std::lock_guard lock(mutex_);
    is_woken_ = true;
  }
  ready_.notify_one();
}

std::uint64_t EventQueue::refused_windows() const {
  std::lock_guard lock(mutex_);
  return refused_windows_;
}

}  // namespace millrace::storage::fetch
