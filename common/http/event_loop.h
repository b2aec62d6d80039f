#pragma once

#include <chrono>
#include <functional>
#include <memory>

namespace boost::asio {
class io_context;
}

namespace millrace::common::http {

/// One thread's loop of events: sockets, timers and posted functions, one after another. Everything
/// that lives on a loop (servers, connections, whoever they call) needs no lock.
class EventLoop {
 public:
  EventLoop();
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  /// Runs events on the calling thread until stop(). Call once.
  void run();

  /// Ends run() after the event in progress. Any thread.
  void stop();

  /// Runs a function on the loop, in the order of posting. Any thread.
  void post(std::function<void()> function);

  /// A pending timer; destroying or overwriting it cancels. Belongs to the loop's thread.
  class Timer {
   public:
    Timer();
    Timer(Timer&&) noexcept;
    Timer& operator=(Timer&&) noexcept;
    ~Timer();

   private:
    friend class EventLoop;
    struct Impl;
    explicit Timer(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
  };

  /// Runs a function on the loop once, after a delay. Call on the loop's thread, or before run().
  [[nodiscard]] Timer after(std::chrono::steady_clock::duration delay,
                            std::function<void()> function);

  /// For the sources of this folder alone.
  boost::asio::io_context& context() { return *context_; }

 private:
  std::unique_ptr<boost::asio::io_context> context_;
};

}  // namespace millrace::common::http
