#include "common/process/shutdown_signal.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>

#include <thread>

#include "common/process/reload_signal.h"

namespace millrace {
namespace {

TEST(ShutdownSignal, CountsTermAndIntAndWakesWaiters) {
  auto signal = ShutdownSignal::install();
  ASSERT_TRUE(signal.ok());
  EXPECT_EQ(signal->count(), 0);
  EXPECT_EQ(signal->wait_beyond_for(0, std::chrono::milliseconds(1)), 0);
  std::thread sender([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ::kill(::getpid(), SIGTERM);
  });
  EXPECT_EQ(signal->wait_beyond(0), 1);
  sender.join();
  pollfd wait{.fd = signal->fd(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&wait, 1, 0), 1);
  EXPECT_EQ(signal->wait_beyond_for(1, std::chrono::milliseconds(1)), 1);
  ::kill(::getpid(), SIGINT);
  EXPECT_EQ(signal->wait_beyond_for(1, std::chrono::seconds(5)), 2);
}

TEST(ShutdownSignal, IgnoresBrokenPipesAndCanBeInstalledAgain) {
  for (int round = 0; round < 2; ++round) {
    auto signal = ShutdownSignal::install();
    ASSERT_TRUE(signal.ok());
    ::raise(SIGPIPE);
    EXPECT_EQ(signal->count(), 0);
  }
}

TEST(ReloadSignal, IsTakenOnce) {
  auto signal = ReloadSignal::install();
  ASSERT_TRUE(signal.ok());
  EXPECT_FALSE(signal->take());
  ::raise(SIGHUP);
  ::raise(SIGHUP);
  pollfd wait{.fd = signal->fd(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&wait, 1, 0), 1);
  EXPECT_TRUE(signal->take());
  EXPECT_FALSE(signal->take());
  EXPECT_EQ(::poll(&wait, 1, 0), 0);
}

}  // namespace
}  // namespace millrace
