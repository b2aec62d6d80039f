#include "dataplane/worker/command_queue.h"

#include <utility>

#include "common/check.h"

namespace millrace::dataplane::worker {
namespace {

std::int64_t tokens_of(const Command& command) {
  if (const auto* prefill = std::get_if<StartPrefill>(&command)) {
    return static_cast<std::int64_t>(prefill->spec.tokens.size());
  }
  if (const auto* decode = std::get_if<StartDecode>(&command)) {
    return static_cast<std::int64_t>(decode->spec.tokens.size());
  }
  return 0;
}

}  // namespace

bool CommandQueue::try_push(Command&& command) {
  const std::int64_t tokens = tokens_of(command);
  {
    std::lock_guard lock(mutex_);
    if (request_count_ >= limits_.max_requests) return false;
    // A list longer than the bound may still pass, alone.
    if (request_tokens_ > 0 && request_tokens_ + tokens > limits_.max_request_tokens) return false;
    ++request_count_;
    request_tokens_ += tokens;
    queue_.push_back(std::move(command));
  }
  ready_.notify_one();
  return true;
}

void CommandQueue::push_control(Command&& command) {
  {
    std::lock_guard lock(mutex_);
    CHECK(queue_.size() - request_count_ < limits_.max_control, "control commands are bounded");
    queue_.push_back(std::move(command));
  }
  ready_.notify_one();
}

std::vector<Command> CommandQueue::pop_all(std::chrono::nanoseconds timeout) {
  std::unique_lock lock(mutex_);
  if (timeout > std::chrono::nanoseconds::zero()) {
    ready_.wait_for(lock, timeout, [&] { return is_woken_ || !queue_.empty(); });
  }
  is_woken_ = false;
  request_count_ = 0;
  request_tokens_ = 0;
  return std::exchange(queue_, {});
}

void CommandQueue::wake() {
  {
    std::lock_guard lock(mutex_);
    is_woken_ = true;
  }
  ready_.notify_one();
}

}  // namespace millrace::dataplane::worker
