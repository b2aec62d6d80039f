#include "agent/server/agent.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <fstream>
#include <functional>
#include <thread>

#include "agent/server/routes.h"
#include "agent/test_programs/test_programs.h"
#include "common/http/http_client.h"
#include "common/http/rest_server.h"
#include "common/str_cat.h"

namespace millrace::agent::server {
namespace {

using namespace std::chrono_literals;
using api::admin::AssignedProcess;
using api::admin::Heartbeat;
using api::admin::HeartbeatReply;
using api::admin::ProcessReport;
using api::admin::ProcessRole;
using api::admin::ProcessState;
using common::http::RestRequest;
using common::http::RestResponse;
using common::http::RestServer;
using test_programs::TestPrograms;
using Clock = std::chrono::steady_clock;

/// The controller's side of the conversation, as the test dictates it.
class ScriptedController {
 public:
  explicit ScriptedController(std::string listen = "127.0.0.1:0") {
    auto server = RestServer::start(
        {.listen = std::move(listen)},
        {{"POST", "/api/v1/nodes", [this](const RestRequest& request) { return join(request); }},
         {"POST", "/api/v1/nodes/n0/heartbeat",
          [this](const RestRequest& request) { return heartbeat(request); }}});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = std::move(*server);
  }

  const std::string& address() const { return server_->address(); }

  void reply_with(std::uint64_t epoch, std::uint64_t revision,
                  std::vector<AssignedProcess> processes) {
    std::lock_guard lock(mutex_);
    reply_.epoch = epoch;
    reply_.revision = revision;
    reply_.assignment = std::move(processes);
  }

  /// Waits for a heartbeat that satisfies the condition.
  bool saw(const std::function<bool(const Heartbeat&)>& condition,
           std::chrono::milliseconds timeout = 120s) {
    std::unique_lock lock(mutex_);
    return arrived_.wait_for(lock, timeout, [&] { return last_ && condition(*last_); });
  }
  Heartbeat last() {
    std::lock_guard lock(mutex_);
    return last_.value_or(Heartbeat{});
  }
  int joins() {
    std::lock_guard lock(mutex_);
    return joins_;
  }
  int heartbeats() {
    std::lock_guard lock(mutex_);
    return heartbeats_;
  }

 private:
  RestResponse join(const RestRequest& request) {
    absl::StatusOr<api::admin::NodeJoin> join = api::admin::parse_node_join(request.body);
    EXPECT_TRUE(join.ok()) << join.status();
    std::lock_guard lock(mutex_);
    ++joins_;
    has_joined_ = true;
    api::admin::NodeJoinReply reply;
    reply.epoch = reply_.epoch;
    reply.heartbeat_interval = 200ms;
    reply.node_timeout = 3000ms;
    return {200, to_json(reply), "application/json"};
  }

  RestResponse heartbeat(const RestRequest& request) {
    absl::StatusOr<Heartbeat> heartbeat = api::admin::parse_heartbeat(request.body);
    EXPECT_TRUE(heartbeat.ok()) << heartbeat.status();
    std::lock_guard lock(mutex_);
    if (!has_joined_) return common::http::rest_error(absl::NotFoundError("join first"));
    ++heartbeats_;
    last_ = *heartbeat;
    arrived_.notify_all();
    return {200, to_json(reply_), "application/json"};
  }

  std::mutex mutex_;
  std::condition_variable arrived_;
  HeartbeatReply reply_;
  std::optional<Heartbeat> last_;
  bool has_joined_ = false;
  int joins_ = 0;
  int heartbeats_ = 0;
  std::unique_ptr<RestServer> server_;
};

AssignedProcess assigned(const TestPrograms& programs, std::string worker_id) {
  AssignedProcess process;
  process.spec.role =
      worker_id.starts_with("entrypoint") ? ProcessRole::kEntrypoint : ProcessRole::kDecode;
  process.spec.instance_id = worker_id;
  process.spec.worker_id = std::move(worker_id);
  process.spec.model_dir = programs.model_dir();
  process.spec.model_id = "nano";
  return process;
}

/// An agent on a thread of its own, which is the one its children hang on.
class RunningAgent {
 public:
  RunningAgent(const TestPrograms& programs, const std::string& controller_address) {
    AgentOptions options;
    options.supervisor.node = {.node_id = "n0",
                               .host_id = "h0",
                               .listen_host = "127.0.0.1",
                               .controller_url = "http://" + controller_address,
                               .bin_dir = programs.bin_dir(),
                               .log_level = "info"};
    options.supervisor.data_dir = programs.data_dir();
    options.supervision.stop_grace = 300s;
    options.address = "127.0.0.1:1";
    absl::StatusOr<NodeLock> lock = NodeLock::take(programs.data_dir());
    EXPECT_TRUE(lock.ok()) << lock.status();
    const Logger log = Logger::to_sink("agent", LogLevel::kOff, [](std::string_view) {});
    agent_ = std::move(*Agent::create(options, std::move(*lock), log, metrics_));
    shutdown_fd_ = eventfd(0, EFD_CLOEXEC);
    thread_ = std::thread(
        [this] { status_ = agent_->run([this] { return shutdowns_.load(); }, shutdown_fd_); });
  }
  ~RunningAgent() {
    if (thread_.joinable()) {
      EXPECT_TRUE(shut_down(2).ok());
    }
    close(shutdown_fd_);
  }

  /// As that many SIGTERMs would; returns what run() returned.
  absl::Status shut_down(int signals = 1) {
    shutdowns_ = signals;
    const std::uint64_t one = 1;
    EXPECT_EQ(write(shutdown_fd_, &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
    thread_.join();
    return status_;
  }

  const Agent& agent() const { return *agent_; }
  const Registry& registry() const { return registry_; }

 private:
  Registry registry_;
  telemetry::AgentMetrics metrics_{registry_};
  std::unique_ptr<Agent> agent_;
  std::atomic<int> shutdowns_ = 0;
  int shutdown_fd_ = -1;
  absl::Status status_;
  std::thread thread_;
};

std::optional<ProcessReport> find(const Heartbeat& heartbeat, std::string_view worker_id) {
  for (const ProcessReport& report : heartbeat.processes) {
    if (report.worker_id == worker_id) return report;
  }
  return std::nullopt;
}

std::function<bool(const Heartbeat&)> is_ready(std::string worker_id,
                                               std::uint64_t incarnation = 0) {
  return [worker_id = std::move(worker_id), incarnation](const Heartbeat& heartbeat) {
    const auto report = find(heartbeat, worker_id);
    return report && report->state == ProcessState::kReady && report->incarnation >= incarnation;
  };
}

TEST(Agent, JoinsObeysAndReports) {
  TestPrograms programs;
  ScriptedController controller;
  controller.reply_with(3, 8, {assigned(programs, "decode-0"), assigned(programs, "entrypoint-0")});
  RunningAgent agent(programs, controller.address());
  ASSERT_TRUE(controller.saw([](const Heartbeat& heartbeat) {
    return is_ready("decode-0")(heartbeat) && is_ready("entrypoint-0")(heartbeat);
  }));
  const Heartbeat last = controller.last();
  EXPECT_EQ(last.epoch, 3u);
  EXPECT_EQ(last.revision, 8u);
  EXPECT_EQ(find(last, "decode-0")->model_id, "nano");
  EXPECT_EQ(find(last, "decode-0")->artifact_digest_hex, "ab");
  EXPECT_EQ(controller.joins(), 1);
  const api::admin::AgentState state = agent.agent().state();
  EXPECT_TRUE(state.is_connected);
  EXPECT_EQ(state.processes.size(), 2u);
  EXPECT_EQ(state.node_id, "n0");
}

TEST(Agent, AKilledWorkerIsReportedAndRestarted) {
  TestPrograms programs;
  ScriptedController controller;
  controller.reply_with(1, 1, {assigned(programs, "decode-0")});
  RunningAgent agent(programs, controller.address());
  ASSERT_TRUE(controller.saw(is_ready("decode-0")));
  const ProcessReport before = *find(controller.last(), "decode-0");
  kill(static_cast<pid_t>(before.pid), SIGKILL);
  ASSERT_TRUE(controller.saw(is_ready("decode-0", before.incarnation + 1)));
  const ProcessReport after = *find(controller.last(), "decode-0");
  EXPECT_EQ(after.incarnation, before.incarnation + 1);
  EXPECT_NE(after.pid, before.pid);
  EXPECT_EQ(after.restarts, 1u);
  EXPECT_EQ(after.last_error, "signal 9 (Killed)");
  EXPECT_NE(agent.registry().exposition().find(
                "millrace_agent_process_failures_total{role=\"decode\"} 1"),
            std::string::npos);
}

TEST(Agent, ABadCheckpointIsReportedInTheWordsOfItsWorkerAndEndsAsFailing) {
  TestPrograms programs;
  programs.behave("bad");
  ScriptedController controller;
  controller.reply_with(1, 1, {assigned(programs, "decode-0")});
  RunningAgent agent(programs, controller.address());
  ASSERT_TRUE(controller.saw([](const Heartbeat& heartbeat) {
    const auto report = find(heartbeat, "decode-0");
    return report && report->state == ProcessState::kFailing;
  }));
  EXPECT_EQ(find(controller.last(), "decode-0")->last_error,
            "exit code 1: tensor layers.0.x is missing");
  // It keeps trying, and recovers when the cause is gone.
  programs.behave_well();
  EXPECT_TRUE(controller.saw(is_ready("decode-0")));
}

TEST(Agent, WorkersOutliveTheControllerAndTheNextOneIsJoined) {
  TestPrograms programs;
  auto controller = std::make_unique<ScriptedController>();
  const std::string address = controller->address();
  controller->reply_with(1, 1, {assigned(programs, "decode-0")});
  RunningAgent agent(programs, address);
  ASSERT_TRUE(controller->saw(is_ready("decode-0")));
  const ProcessReport before = *find(controller->last(), "decode-0");
  controller.reset();
  while (agent.agent().state().is_connected) std::this_thread::sleep_for(10ms);
  EXPECT_EQ(kill(static_cast<pid_t>(before.pid), 0), 0);

  ScriptedController next(address);  // knows nobody: heartbeats are 404 until a join
  next.reply_with(2, 1, {assigned(programs, "decode-0")});
  ASSERT_TRUE(next.saw(is_ready("decode-0")));
  EXPECT_EQ(next.joins(), 1);
  EXPECT_EQ(find(next.last(), "decode-0")->pid, before.pid) << "it was left alone";
}

TEST(Agent, AnOlderEpochIsRefusedAlsoAfterARestartOfTheAgent) {
  TestPrograms programs;
  ScriptedController controller;
  {
    controller.reply_with(7, 1, {assigned(programs, "decode-0")});
    RunningAgent agent(programs, controller.address());
    ASSERT_TRUE(controller.saw(is_ready("decode-0")));
    controller.reply_with(6, 9, {});
    const int count = controller.heartbeats();
    while (controller.heartbeats() < count + 3) std::this_thread::sleep_for(10ms);
    EXPECT_TRUE(is_ready("decode-0")(controller.last()));
    EXPECT_EQ(controller.last().epoch, 7u);
    EXPECT_EQ(agent.registry().exposition().find(
                  "millrace_agent_assignment_refusals_total{reason=\"old_epoch\"} 0"),
              std::string::npos);
  }
  controller.reply_with(6, 9, {assigned(programs, "decode-0")});
  const int count = controller.heartbeats();
  RunningAgent agent(programs, controller.address());
  while (controller.heartbeats() < count + 3) std::this_thread::sleep_for(10ms);
  EXPECT_TRUE(controller.last().processes.empty());
  EXPECT_EQ(controller.last().epoch, 7u);
}

TEST(Agent, AShutDownDrainsItsProcessesAndSaysGoodbye) {
  TestPrograms programs;
  ScriptedController controller;
  controller.reply_with(1, 1, {assigned(programs, "decode-0"), assigned(programs, "entrypoint-0")});
  RunningAgent agent(programs, controller.address());
  ASSERT_TRUE(controller.saw([](const Heartbeat& heartbeat) {
    return is_ready("decode-0")(heartbeat) && is_ready("entrypoint-0")(heartbeat);
  }));
  const Heartbeat before = controller.last();
  EXPECT_TRUE(agent.shut_down().ok());
  EXPECT_TRUE(controller.last().is_leaving);
  EXPECT_TRUE(controller.last().processes.empty());
  for (const ProcessReport& report : before.processes) {
    EXPECT_EQ(kill(static_cast<pid_t>(report.pid), 0), -1) << report.worker_id;
    std::ifstream log(str_cat(programs.data_dir(), "/logs/", report.worker_id, ".log"));
    const std::string text((std::istreambuf_iterator<char>(log)), {});
    EXPECT_NE(text.find("says goodbye"), std::string::npos) << "it had to be killed";
  }
}

TEST(Agent, ASecondSignalKillsWhatDoesNotStop) {
  TestPrograms programs;
  programs.behave("stubborn");
  ScriptedController controller;
  controller.reply_with(1, 1, {assigned(programs, "decode-0")});
  RunningAgent agent(programs, controller.address());
  ASSERT_TRUE(controller.saw(is_ready("decode-0")));
  const pid_t pid = static_cast<pid_t>(find(controller.last(), "decode-0")->pid);
  const Clock::time_point begin = Clock::now();
  EXPECT_TRUE(agent.shut_down(2).ok());
  EXPECT_LT(Clock::now() - begin, 200s) << "less than the grace";
  EXPECT_EQ(kill(pid, 0), -1);
}

TEST(Agent, AnswersOverRest) {
  Registry registry;
  api::admin::AgentState state = {
      .node_id = "n0", .host_id = "h0", .epoch = 4, .is_connected = true, .processes = {}};
  auto server =
      RestServer::start({.listen = "127.0.0.1:0"}, routes([&] { return state; }, registry));
  ASSERT_TRUE(server.ok()) << server.status();
  common::http::HttpClient client;
  const std::string url = str_cat("http://", (*server)->address());
  auto parsed = api::admin::parse_agent_state(client.get(url + "/api/v1/state")->body);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->node_id, "n0");
  EXPECT_EQ(parsed->epoch, 4u);
  EXPECT_EQ(client.get(url + "/health")->status, 200);
  EXPECT_EQ(client.get(url + "/metrics")->status, 200);
}

TEST(NodeLock, HoldsAFolderOnceAndKeepsTheEpoch) {
  TestPrograms programs;
  {
    absl::StatusOr<NodeLock> lock = NodeLock::take(programs.data_dir());
    ASSERT_TRUE(lock.ok()) << lock.status();
    EXPECT_EQ(lock->epoch(), 0u);
    const absl::Status second = NodeLock::take(programs.data_dir()).status();
    EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_NE(std::string(second.message()).find("another agent is running on"), std::string::npos);
    ASSERT_TRUE(lock->store_epoch(12).ok());
  }
  EXPECT_EQ(NodeLock::take(programs.data_dir())->epoch(), 12u);
  std::ofstream(programs.data_dir() + "/epoch") << "twelve";
  EXPECT_EQ(NodeLock::take(programs.data_dir()).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace millrace::agent::server
