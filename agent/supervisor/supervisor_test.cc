#include "agent/supervisor/supervisor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <thread>

#include "agent/test_programs/test_programs.h"
#include "common/mapped_file.h"
#include "common/str_cat.h"

namespace millrace::agent::supervisor {
namespace {

using namespace std::chrono_literals;
using api::admin::ProcessRole;
using api::admin::ProcessSpec;
using test_programs::TestPrograms;
using Clock = std::chrono::steady_clock;

/// Unique over test processes that run side by side: shared memory is the host's.
std::string unique_id(std::string_view role) { return str_cat(role, "-", getpid()); }

class SupervisorTest : public ::testing::Test {
 protected:
  void SetUp() override { reopen(); }

  void reopen() {
    supervisor_.reset();
    SupervisorOptions options;
    options.node = {.node_id = "n0",
                    .host_id = "h0",
                    .listen_host = "127.0.0.1",
                    .controller_url = "http://127.0.0.1:1",
                    .bin_dir = programs_.bin_dir(),
                    .log_level = "info"};
    options.data_dir = programs_.data_dir();
    options.max_log_bytes = 1000;
    absl::StatusOr<std::unique_ptr<Supervisor>> supervisor = Supervisor::open(options);
    ASSERT_TRUE(supervisor.ok()) << supervisor.status();
    supervisor_ = std::move(*supervisor);
  }

  ProcessSpec worker(std::string worker_id) const {
    ProcessSpec spec;
    spec.instance_id = worker_id;
    spec.worker_id = std::move(worker_id);
    spec.role = ProcessRole::kDecode;
    spec.model_dir = programs_.model_dir();
    spec.model_id = "nano";
    return spec;
  }

  /// The next event of this kind; other kinds fail the test.
  template <typename T>
  std::optional<T> next() {
    const TimePoint deadline = Clock::now() + 120s;
    while (Clock::now() < deadline) {
      for (core::Event& event : supervisor_->wait(deadline)) {
        if (T* wanted = std::get_if<T>(&event)) return *wanted;
        ADD_FAILURE() << "an event of another kind: " << event.index();
        return std::nullopt;
      }
    }
    ADD_FAILURE() << "no event came";
    return std::nullopt;
  }

  std::string log_of(const std::string& worker_id) const {
    return read_file(str_cat(programs_.data_dir(), "/logs/", worker_id, ".log")).value_or("");
  }
  std::string ready_file_of(const std::string& worker_id) const {
    return str_cat(programs_.data_dir(), "/run/", worker_id, ".ready");
  }

  TestPrograms programs_;
  std::unique_ptr<Supervisor> supervisor_;
};

TEST_F(SupervisorTest, AProcessBecomesReadyAndStopsWhenTold) {
  const std::string id = unique_id("decode");
  absl::StatusOr<std::int64_t> pid = supervisor_->start(worker(id), 3);
  ASSERT_TRUE(pid.ok()) << pid.status();
  const auto ready = next<core::BecameReady>();
  ASSERT_TRUE(ready.has_value());
  EXPECT_EQ(ready->worker_id, id);
  EXPECT_EQ(ready->incarnation, 3u);
  EXPECT_EQ(ready->ready.pid, *pid);
  EXPECT_EQ(ready->ready.address, "127.0.0.1:7");
  EXPECT_EQ(ready->ready.model_id, "nano");
  EXPECT_EQ(access(ready_file_of(id).c_str(), F_OK), 0);
  supervisor_->signal({id, 2, core::StopSignal::kKill});  // another incarnation: not this one
  supervisor_->signal({id, 3, core::StopSignal::kTerminate});
  const auto exited = next<core::Exited>();
  ASSERT_TRUE(exited.has_value());
  EXPECT_EQ(exited->reason, "exit code 0");
  EXPECT_EQ(log_of(id), str_cat(id, " starts\n", id, " says goodbye\n"));
  EXPECT_NE(access(ready_file_of(id).c_str(), F_OK), 0) << "the ready-file must be gone";
}

TEST_F(SupervisorTest, AProcessThatGivesUpTellsItsLastWords) {
  const std::string id = unique_id("decode");
  programs_.behave("bad");
  ASSERT_TRUE(supervisor_->start(worker(id), 1).ok());
  const auto exited = next<core::Exited>();
  ASSERT_TRUE(exited.has_value());
  EXPECT_EQ(exited->reason, "exit code 1: tensor layers.0.x is missing");
}

TEST_F(SupervisorTest, AKilledProcessHasNoLastWords) {
  const std::string id = unique_id("decode");
  absl::StatusOr<std::int64_t> pid = supervisor_->start(worker(id), 1);
  ASSERT_TRUE(next<core::BecameReady>().has_value());
  kill(static_cast<pid_t>(*pid), SIGKILL);
  EXPECT_EQ(next<core::Exited>()->reason, "signal 9 (Killed)");
}

TEST_F(SupervisorTest, AStubbornProcessIsKilled) {
  const std::string id = unique_id("decode");
  programs_.behave("stubborn");
  ASSERT_TRUE(supervisor_->start(worker(id), 1).ok());
  ASSERT_TRUE(next<core::BecameReady>().has_value());
  supervisor_->signal({id, 1, core::StopSignal::kTerminate});
  EXPECT_TRUE(supervisor_->wait(Clock::now() + 200ms).empty());
  supervisor_->signal({id, 1, core::StopSignal::kKill});
  EXPECT_EQ(next<core::Exited>()->reason, "signal 9 (Killed)");
}

TEST_F(SupervisorTest, AnUnusableReadyFileEndsTheProcessAndIsTheReason) {
  programs_.behave("garbage");
  ASSERT_TRUE(supervisor_->start(worker(unique_id("decode")), 1).ok());
  const auto exited = next<core::Exited>();
  ASSERT_TRUE(exited.has_value());
  EXPECT_TRUE(exited->reason.starts_with("its ready-file is unusable: ")) << exited->reason;
}

TEST_F(SupervisorTest, AStaleReadyFileIsNotMistakenForANewOne) {
  const std::string id = unique_id("decode");
  programs_.behave("mute");
  ASSERT_TRUE(
      write_file_atomically(ready_file_of(id), R"({"pid":1,"address":"127.0.0.1:9"})").ok());
  ASSERT_TRUE(supervisor_->start(worker(id), 1).ok());
  EXPECT_TRUE(supervisor_->wait(Clock::now() + 200ms).empty());
}

TEST_F(SupervisorTest, AProgramThatIsMissingIsNamed) {
  std::filesystem::remove(programs_.bin_dir() + "/millrace-worker");
  const absl::Status status = supervisor_->start(worker(unique_id("decode")), 1).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
  EXPECT_NE(status.message().find("millrace-worker"), absl::string_view::npos) << status;
}

void make_shared_memory(const std::string& name) {
  const int fd = shm_open(name.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  ASSERT_GE(fd, 0);
  close(fd);
}

bool has_shared_memory(const std::string& name) {
  return access(("/dev/shm" + name).c_str(), F_OK) == 0;
}

TEST_F(SupervisorTest, TheSharedMemoryOfADeadWorkerIsRemovedAndNoOthers) {
  const std::string id = unique_id("decode");
  absl::StatusOr<std::int64_t> pid = supervisor_->start(worker(id), 1);
  ASSERT_TRUE(next<core::BecameReady>().has_value());
  const std::string own = str_cat("/millrace-h0+", id, "+17");
  const std::string longer_name = str_cat("/millrace-h0+", id, "0+17");
  // Another cluster on this machine: its workers have the same ids, its host id is another.
  const std::string other_cluster = str_cat("/millrace-h1+", id, "+17");
  for (const std::string& name : {own, longer_name, other_cluster}) make_shared_memory(name);
  kill(static_cast<pid_t>(*pid), SIGKILL);
  ASSERT_TRUE(next<core::Exited>().has_value());
  EXPECT_FALSE(has_shared_memory(own));
  for (const std::string& name : {longer_name, other_cluster}) {
    EXPECT_TRUE(has_shared_memory(name)) << name;
    shm_unlink(name.c_str());
  }
}

TEST_F(SupervisorTest, LogsAreRotated) {
  const std::string id = unique_id("decode");
  ASSERT_TRUE(supervisor_->start(worker(id), 1).ok());
  ASSERT_TRUE(next<core::BecameReady>().has_value());
  const std::string path = str_cat(programs_.data_dir(), "/logs/", id, ".log");
  const int fd = open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  const std::string much(5000, 'x');
  ASSERT_EQ(write(fd, much.data(), much.size()), static_cast<ssize_t>(much.size()));
  close(fd);
  const TimePoint deadline = Clock::now() + 120s;
  while (access((path + ".1").c_str(), F_OK) != 0 && Clock::now() < deadline) {
    EXPECT_TRUE(supervisor_->wait(Clock::now() + 100ms).empty());
  }
  EXPECT_EQ(std::filesystem::file_size(path), 0u);
}

TEST_F(SupervisorTest, WakeAndAReadableDescriptorEndAWait) {
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  ASSERT_EQ(write(fds[1], "x", 1), 1);
  // Undisturbed, a wait lasts until its own upkeep is due, after two seconds. The fastest of a few
  // tries tells the difference on a busy machine, too.
  auto by_wake = Clock::duration::max();
  auto by_descriptor = Clock::duration::max();
  for (int attempt = 0; attempt < 5; ++attempt) {
    const TimePoint begin = Clock::now();
    std::thread waker([this] { supervisor_->wake(); });
    EXPECT_TRUE(supervisor_->wait(begin + 300s).empty());
    by_wake = std::min(by_wake, Clock::now() - begin);
    waker.join();
    supervisor_->wait(Clock::now());  // takes a wake-up that came after the wait
    const TimePoint again = Clock::now();
    EXPECT_TRUE(supervisor_->wait(again + 300s, fds[0]).empty());
    by_descriptor = std::min(by_descriptor, Clock::now() - again);
  }
  EXPECT_LT(by_wake, 1s);
  EXPECT_LT(by_descriptor, 1s);
  close(fds[0]);
  close(fds[1]);
}

TEST_F(SupervisorTest, ClosingTheSupervisorLeavesNoProcess) {
  const std::string id = unique_id("decode");
  programs_.behave("stubborn");
  absl::StatusOr<std::int64_t> pid = supervisor_->start(worker(id), 1);
  ASSERT_TRUE(next<core::BecameReady>().has_value());
  reopen();
  EXPECT_EQ(kill(static_cast<pid_t>(*pid), 0), -1);
}

TEST_F(SupervisorTest, AKilledAgentLeavesNoProcess) {
  // The process in the middle poses as the agent: it starts a worker, tells its pid, and is killed.
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  const pid_t agent = fork();
  if (agent == 0) {
    const absl::StatusOr<std::int64_t> pid = supervisor_->start(worker(unique_id("orphan")), 1);
    const std::int64_t value = pid.ok() ? *pid : -1;
    static_cast<void>(!write(fds[1], &value, sizeof(value)));
    pause();
    _exit(0);
  }
  std::int64_t worker_pid = -1;
  ASSERT_EQ(read(fds[0], &worker_pid, sizeof(worker_pid)),
            static_cast<ssize_t>(sizeof(worker_pid)));
  ASSERT_GT(worker_pid, 0);
  ASSERT_EQ(kill(static_cast<pid_t>(worker_pid), 0), 0);
  kill(agent, SIGKILL);
  waitpid(agent, nullptr, 0);
  // The orphan is dead; whoever adopted it may take a moment to reap it.
  const std::string stat_path = str_cat("/proc/", worker_pid, "/stat");
  const TimePoint deadline = Clock::now() + 120s;
  bool is_gone = false;
  while (!is_gone && Clock::now() < deadline) {
    const std::string stat = read_file(stat_path).value_or("");
    is_gone = stat.empty() || stat.find(") Z ") != stat.npos;
    std::this_thread::sleep_for(10ms);
  }
  EXPECT_TRUE(is_gone);
  close(fds[0]);
  close(fds[1]);
}

}  // namespace
}  // namespace millrace::agent::supervisor
