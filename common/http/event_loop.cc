#include "common/http/event_loop.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <utility>

namespace millrace::common::http {

namespace asio = boost::asio;

// The hint says that one thread runs the loop; posting from others stays safe.
EventLoop::EventLoop() : context_(std::make_unique<asio::io_context>(1)) {}
EventLoop::~EventLoop() = default;

void EventLoop::run() {
  const auto work = asio::make_work_guard(*context_);
  context_->run();
}

void EventLoop::stop() { context_->stop(); }

void EventLoop::post(std::function<void()> function) { asio::post(*context_, std::move(function)); }

struct EventLoop::Timer::Impl {
  asio::steady_timer timer;
  // Outlives the timer inside the handler, so that a handler already on its way sees the cancel.
  std::shared_ptr<bool> is_cancelled;

  ~Impl() { *is_cancelled = true; }
};

EventLoop::Timer::Timer() = default;
EventLoop::Timer::Timer(Timer&&) noexcept = default;
EventLoop::Timer& EventLoop::Timer::operator=(Timer&&) noexcept = default;
EventLoop::Timer::~Timer() = default;
EventLoop::Timer::Timer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

EventLoop::Timer EventLoop::after(std::chrono::steady_clock::duration delay,
                                  std::function<void()> function) {
  auto is_cancelled = std::make_shared<bool>(false);
  auto impl = std::unique_ptr<Timer::Impl>(
      new Timer::Impl{asio::steady_timer(*context_, delay), is_cancelled});
  impl->timer.async_wait(
      [is_cancelled, function = std::move(function)](const boost::system::error_code& error) {
        if (!error && !*is_cancelled) function();
      });
  return Timer(std::move(impl));
}

}  // namespace millrace::common::http
