#include "common/process/child_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "common/mapped_file.h"
#include "common/str_cat.h"

namespace millrace {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

ChildSpec shell(const std::string& script) {
  return {.program = "/bin/sh", .arguments = {"-c", script}};
}

std::string temporary_path(const std::string& name) {
  return str_cat(::testing::TempDir(), "child_process_", ::getpid(), "_", name);
}

/// Waits until the process is gone (a zombie counts as gone).
bool is_gone_within(pid_t pid, std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (std::chrono::steady_clock::now() < deadline) {
    const auto stat = read_file(str_cat("/proc/", pid, "/stat"));
    if (!stat.ok() || stat->find(") Z") != std::string::npos) return true;
    std::this_thread::sleep_for(10ms);
  }
  return false;
}

TEST(ChildProcess, ReportsTheExitCode) {
  auto child = ChildProcess::start(shell("exit 7"));
  ASSERT_TRUE(child.ok()) << child.status();
  const auto status = child->wait_for(10s);
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->code, 7);
  EXPECT_EQ(status->signal, 0);
  EXPECT_EQ(describe(*status), "exit code 7");
  EXPECT_EQ(child->poll()->code, 7);
}

TEST(ChildProcess, ReportsTheSignal) {
  auto child = ChildProcess::start(shell("kill -9 $$"));
  ASSERT_TRUE(child.ok()) << child.status();
  const auto status = child->wait_for(10s);
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->signal, SIGKILL);
  EXPECT_THAT(describe(*status), HasSubstr("signal 9"));
}

TEST(ChildProcess, AMissingProgramIsAnErrorAtTheStart) {
  const auto child = ChildProcess::start({.program = "/nonexistent/program"});
  EXPECT_EQ(child.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(child.status().message()), HasSubstr("/nonexistent/program"));
}

TEST(ChildProcess, WritesItsOutputWhereToldWithItsEnvironmentAndGroup) {
  const std::string path = temporary_path("output");
  ChildSpec spec = shell("echo \"$GREETING $1\"; echo error >&2; cut -d' ' -f5 /proc/$$/stat");
  spec.arguments.insert(spec.arguments.end(), {"name", "two words"});
  spec.environment = {"GREETING=hello"};
  spec.output_path = path;
  auto child = ChildProcess::start(spec);
  ASSERT_TRUE(child.ok()) << child.status();
  ASSERT_TRUE(child->wait_for(10s).has_value());
  EXPECT_EQ(*read_file(path), str_cat("hello two words\nerror\n", child->pid(), "\n"));
  std::filesystem::remove(path);
}

TEST(ChildProcess, TheExitDescriptorBecomesReadableAtTheEnd) {
  auto child = ChildProcess::start(shell("exec sleep 100"));
  ASSERT_TRUE(child.ok()) << child.status();
  pollfd wait{.fd = child->exit_fd(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&wait, 1, 0), 0);
  EXPECT_EQ(child->poll(), std::nullopt);
  child->send(SIGTERM);
  EXPECT_EQ(::poll(&wait, 1, 10'000), 1);
  EXPECT_EQ(child->poll()->signal, SIGTERM);
}

TEST(ChildProcess, StopKillsWhatIgnoresTheRequest) {
  const std::string path = temporary_path("ready");
  auto child = ChildProcess::start(
      shell(str_cat("trap '' TERM; touch ", path, "; while :; do sleep 0.05; done")));
  ASSERT_TRUE(child.ok()) << child.status();
  while (!std::filesystem::exists(path)) std::this_thread::sleep_for(5ms);
  EXPECT_EQ(child->stop(50ms).signal, SIGKILL);
  std::filesystem::remove(path);
}

TEST(ChildProcess, DestructionLeavesNobodyOfItsGroup) {
  const std::string path = temporary_path("grandchild");
  pid_t grandchild = 0;
  {
    auto child = ChildProcess::start(shell(str_cat("sleep 100 & echo $! > ", path, "; wait")));
    ASSERT_TRUE(child.ok()) << child.status();
    while (!read_file(path).ok() || read_file(path)->find('\n') == std::string::npos) {
      std::this_thread::sleep_for(5ms);
    }
    grandchild = std::stoi(*read_file(path));
  }
  EXPECT_TRUE(is_gone_within(grandchild, 5s));
  std::filesystem::remove(path);
}

// A supervisor killed with SIGKILL takes its children along.
TEST(ChildProcess, DiesWithItsParent) {
  int report[2];
  ASSERT_EQ(::pipe(report), 0);
  const pid_t parent = ::fork();
  ASSERT_GE(parent, 0);
  if (parent == 0) {
    auto child = ChildProcess::start(shell("exec sleep 100"));
    const pid_t pid = child.ok() ? child->pid() : -1;
    if (::write(report[1], &pid, sizeof pid) != sizeof pid) ::_exit(1);
    ::pause();
    ::_exit(0);
  }
  pid_t child = -1;
  ASSERT_EQ(::read(report[0], &child, sizeof child), static_cast<ssize_t>(sizeof child));
  ASSERT_GT(child, 0);
  ::kill(parent, SIGKILL);
  ::waitpid(parent, nullptr, 0);
  EXPECT_TRUE(is_gone_within(child, 5s));
  ::close(report[0]);
  ::close(report[1]);
}

}  // namespace
}  // namespace millrace
