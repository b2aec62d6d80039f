#include "dataplane/worker/command_queue.h"

#include <gtest/gtest.h>

#include <thread>

namespace millrace::dataplane::worker {
namespace {

using namespace std::chrono_literals;

Command start_with(std::size_t tokens) {
  StartPrefill start;
  start.spec.tokens.resize(tokens);
  return start;
}

TEST(CommandQueue, RefusesRequestsOverItsBoundsAndNeverControl) {
  CommandQueue queue({.max_requests = 3, .max_request_tokens = 100, .max_control = 10});
  EXPECT_TRUE(queue.try_push(start_with(90)));
  EXPECT_FALSE(queue.try_push(start_with(20)));
  EXPECT_TRUE(queue.try_push(start_with(10)));
  EXPECT_TRUE(queue.try_push(Cancel{}));
  EXPECT_FALSE(queue.try_push(Cancel{}));
  queue.push_control(CloseStream{});
  EXPECT_EQ(queue.pop_all(0ns).size(), 4u);
  // Longer than the bound, but alone.
  EXPECT_TRUE(queue.try_push(start_with(1000)));
  EXPECT_EQ(queue.pop_all(1h).size(), 1u);
}

TEST(CommandQueue, KeepsTheOrderOfArrival) {
  CommandQueue queue({});
  queue.push_control(OpenStream{1});
  EXPECT_TRUE(queue.try_push(start_with(1)));
  queue.push_control(CloseStream{1});
  const auto commands = queue.pop_all(0ns);
  ASSERT_EQ(commands.size(), 3u);
  EXPECT_TRUE(std::holds_alternative<OpenStream>(commands[0]));
  EXPECT_TRUE(std::holds_alternative<StartPrefill>(commands[1]));
  EXPECT_TRUE(std::holds_alternative<CloseStream>(commands[2]));
}

TEST(CommandQueue, WakeEndsAWait) {
  CommandQueue queue({});
  std::thread waker([&] { queue.wake(); });
  EXPECT_TRUE(queue.pop_all(1h).empty());
  waker.join();
}

}  // namespace
}  // namespace millrace::dataplane::worker
