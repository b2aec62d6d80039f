#include "controller/core/controller.h"

#include <gtest/gtest.h>

#include <random>

#include "common/str_cat.h"
#include "common/types.h"
#include "controller/core/listing.h"

namespace millrace::controller::core {
namespace {

using namespace std::chrono_literals;
using api::admin::DesiredState;
using api::admin::Heartbeat;
using api::admin::HeartbeatReply;
using api::admin::NodeJoin;
using api::admin::NodeJoinReply;
using api::admin::ProcessReport;
using api::admin::ProcessState;
using api::admin::WorkerState;

constexpr TimePoint kStart = TimePoint(1h);
const ControllerOptions kOptions{
    .heartbeat_interval = 500ms, .node_timeout = 3000ms, .new_storage_cluster_id = "c1"};

DesiredState desire(int prefill, int decode, int entrypoint = 0) {
  DesiredState desired;
  desired.prefill = prefill;
  desired.decode = decode;
  desired.entrypoint = entrypoint;
  desired.model_dir = "/models/nano";
  desired.model_id = "nano";
  return desired;
}

/// A slow, obvious model of an agent: it obeys the newest assignment it has seen, one process at a
/// time per name, and remembers its epoch over restarts.
struct ModelAgent {
  std::string node_id;
  std::string session_id;
  bool has_joined = false;
  std::uint64_t epoch = 0;
  std::uint64_t revision = 0;
  std::map<std::string, ProcessReport> running;

  JoinEvent join_event() const {
    return {NodeJoin{.protocol_version = kProtocolVersion,
                     .node_id = node_id,
                     .host_id = node_id,
                     .session_id = session_id,
                     .address = "127.0.0.1:1",
                     .epoch = epoch}};
  }

  HeartbeatEvent heartbeat_event() const {
    Heartbeat heartbeat;
    heartbeat.session_id = session_id;
    heartbeat.epoch = epoch;
    heartbeat.revision = revision;
    for (const auto& [worker_id, report] : running) heartbeat.processes.push_back(report);
    return {node_id, heartbeat};
  }

  /// False when the reply is refused as old.
  bool obey(const HeartbeatReply& reply) {
    if (reply.epoch < epoch || (reply.epoch == epoch && reply.revision < revision)) return false;
    epoch = reply.epoch;
    revision = reply.revision;
    if (!reply.assignment) return true;
    std::map<std::string, ProcessReport> next;
    for (const api::admin::AssignedProcess& process : *reply.assignment) {
      const std::string& worker_id = process.spec.worker_id;
      const auto old = running.find(worker_id);
      if (old != running.end()) {
        next[worker_id] = old->second;
        continue;
      }
      ProcessReport report;
      report.worker_id = worker_id;
      report.role = process.spec.role;
      report.state = ProcessState::kReady;
      report.incarnation = process.incarnation_floor + 1;
      report.pid = 100;
      report.address = str_cat(node_id, ":", worker_id);
      report.model_id = process.spec.model_id;
      report.artifact_digest_hex = "aa";
      next[worker_id] = report;
    }
    running = std::move(next);
    return true;
  }

  void restart(std::string new_session) {
    session_id = std::move(new_session);
    has_joined = false;
    revision = 0;
    running.clear();
  }
};

/// One exchange that reaches both sides; joins first when needed.
void exchange(Controller& controller, ModelAgent& agent, TimePoint now) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (!agent.has_joined) {
      const Decision joined = controller.on_event(agent.join_event(), now);
      if (!std::holds_alternative<NodeJoinReply>(joined.reply)) return;
      agent.has_joined = true;
    }
    const Decision decision = controller.on_event(agent.heartbeat_event(), now);
    if (const auto* reply = std::get_if<HeartbeatReply>(&decision.reply)) {
      EXPECT_TRUE(agent.obey(*reply)) << agent.node_id;
      return;
    }
    agent.has_joined = false;
  }
}

ModelAgent agent_of(std::string node_id, std::string session_id = "s1") {
  ModelAgent agent;
  agent.node_id = std::move(node_id);
  agent.session_id = std::move(session_id);
  return agent;
}

std::string view_text(const Controller& controller) {
  std::string text;
  for (const api::admin::ViewWorker& worker : controller.state().view.workers) {
    text += str_cat(text.empty() ? "" : " ", worker.worker_id, ":", worker_state_name(worker.state),
                    "#", worker.incarnation);
  }
  return text;
}

TEST(Controller, BringsADesiredClusterUp) {
  Controller controller(kOptions, {});
  controller.start(kStart);
  ModelAgent agent = agent_of("n0");
  exchange(controller, agent, kStart);
  EXPECT_TRUE(agent.running.empty());
  controller.on_event(SetDesiredEvent{desire(1, 2, 1)}, kStart);
  exchange(controller, agent, kStart);
  exchange(controller, agent, kStart);
  EXPECT_EQ(agent.running.size(), 4u);
  EXPECT_EQ(view_text(controller), "decode-0:ready#1 decode-1:ready#1 prefill-0:ready#1");
  EXPECT_EQ(controller.state().view.model_id, "nano");
}

TEST(Controller, HasNoAssignmentBeforeAnythingWasDesired) {
  Controller controller(kOptions, {});
  controller.start(kStart);
  ModelAgent agent = agent_of("n0");
  agent.running["decode-0"].worker_id = "decode-0";
  exchange(controller, agent, kStart);
  const Decision decision = controller.on_event(agent.heartbeat_event(), kStart);
  EXPECT_FALSE(std::get<HeartbeatReply>(decision.reply).assignment.has_value());
}

TEST(Controller, AWorkerThatDiedLeavesTheViewWithTheReport) {
  Controller controller(kOptions, {});
  controller.start(kStart);
  ModelAgent agent = agent_of("n0");
  controller.on_event(SetDesiredEvent{desire(0, 1)}, kStart);
  exchange(controller, agent, kStart);
  exchange(controller, agent, kStart);
  ASSERT_EQ(view_text(controller), "decode-0:ready#1");
  const std::uint64_t version = controller.state().view.version;
  agent.running["decode-0"].state = ProcessState::kBackoff;
  agent.running["decode-0"].pid = 0;
  agent.running["decode-0"].last_error = "signal 9 (Killed)";
  const Decision decision = controller.on_event(agent.heartbeat_event(), kStart + 1s);
  EXPECT_EQ(view_text(controller), "");
  EXPECT_GT(controller.state().view.version, version);
  ASSERT_EQ(decision.events.size(), 1u);
  EXPECT_EQ(decision.events[0].kind, "worker_died");
  EXPECT_NE(decision.events[0].detail.find("signal 9"), std::string::npos);
  EXPECT_EQ(list_instances(controller.state(), controller.nodes())[0].workers[0].last_error,
            "signal 9 (Killed)");
}

TEST(Controller, ASilentNodeLeavesTheViewAtTheTimeout) {
  Controller controller(kOptions, {});
  controller.start(kStart);
  ModelAgent agent = agent_of("n0");
  controller.on_event(SetDesiredEvent{desire(0, 1)}, kStart);
  exchange(controller, agent, kStart + 10s);
  exchange(controller, agent, kStart + 10s);
  controller.on_event(TimerEvent{}, kStart + 13s - 1ms);
  EXPECT_EQ(view_text(controller), "decode-0:ready#1");
  EXPECT_EQ(controller.next_timer(), kStart + 13s);
  controller.on_event(TimerEvent{}, kStart + 13s);
  EXPECT_EQ(view_text(controller), "");
  EXPECT_EQ(list_instances(controller.state(), controller.nodes())[0].workers[0].state, "lost");
  exchange(controller, agent, kStart + 20s);
  EXPECT_EQ(view_text(controller), "decode-0:ready#1") << "it ran on all the time";
}

TEST(Controller, ARestartKeepsTheViewWhileAgentsAreUnheardAndNeverShrinks) {
  Controller first(kOptions, {});
  first.start(kStart);
  ModelAgent agent = agent_of("n0");
  first.on_event(SetDesiredEvent{desire(1, 1)}, kStart);
  exchange(first, agent, kStart);
  exchange(first, agent, kStart);
  const std::string before = view_text(first);
  ASSERT_EQ(before, "decode-0:ready#1 prefill-0:ready#1");

  Controller second(kOptions, first.state());
  second.start(kStart + 60s);
  EXPECT_EQ(view_text(second), before);
  EXPECT_GT(second.state().view.version, first.state().view.version);
  EXPECT_GT(second.state().epoch, first.state().epoch);
  second.on_event(TimerEvent{}, kStart + 62s);
  EXPECT_EQ(view_text(second), before);
  exchange(second, agent, kStart + 62s);
  EXPECT_EQ(view_text(second), before);
  EXPECT_EQ(agent.running.size(), 2u);
  EXPECT_EQ(agent.epoch, second.state().epoch);

  // Had it not reported in time, its workers would have left the view.
  Controller third(kOptions, first.state());
  third.start(kStart + 60s);
  EXPECT_EQ(third.next_timer(), kStart + 63s);
  third.on_event(TimerEvent{}, kStart + 63s);
  EXPECT_EQ(view_text(third), "");
}

TEST(Controller, AControllerThatLostItsStateTakesTheClusterOverAndOutranksTheOldOne) {
  StoredState old;
  old.epoch = 40;
  Controller previous(kOptions, old);
  previous.start(kStart);
  ModelAgent agent = agent_of("n0");
  previous.on_event(SetDesiredEvent{desire(1, 1)}, kStart);
  exchange(previous, agent, kStart);
  exchange(previous, agent, kStart);
  ASSERT_EQ(agent.epoch, 41u);

  Controller fresh(kOptions, {});
  fresh.start(kStart + 60s);
  exchange(fresh, agent, kStart + 70s);
  exchange(fresh, agent, kStart + 70s);
  EXPECT_EQ(fresh.state().epoch, 42u);
  EXPECT_EQ(agent.running.size(), 2u) << "nothing was desired of it yet: it must run on";
  EXPECT_EQ(view_text(fresh), "decode-0:ready#1 prefill-0:ready#1");
  // What the old one said last, should it arrive only now, is refused.
  HeartbeatReply stale;
  stale.epoch = previous.state().epoch;
  stale.revision = previous.state().revision + 1;
  EXPECT_FALSE(agent.obey(stale));
}

TEST(Controller, AnEqualEpochOfANewNodeIsOutranked) {
  Controller controller(kOptions, {});
  controller.start(kStart);
  ASSERT_EQ(controller.state().epoch, 1u);
  ModelAgent agent = agent_of("n0");
  agent.epoch = 1;  // of another controller
  exchange(controller, agent, kStart);
  EXPECT_EQ(controller.state().epoch, 2u);
  agent.restart("s2");
  exchange(controller, agent, kStart + 10s);
  EXPECT_EQ(controller.state().epoch, 2u) << "this one it got from us";
}

TEST(Controller, AnotherProtocolVersionIsRefusedWithBothNamed) {
  Controller controller(kOptions, {});
  controller.start(kStart);
  JoinEvent event = agent_of("n0").join_event();
  event.join.protocol_version = kProtocolVersion + 1;
  const Decision decision = controller.on_event(event, kStart);
  const auto& status = std::get<absl::Status>(decision.reply);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(std::string(message_of(status)).find(str_cat(kProtocolVersion + 1)), std::string::npos);
}

TEST(Controller, AnUnchangedHeartbeatCommitsNothing) {
  Controller controller(kOptions, {});
  controller.start(kStart);
  ModelAgent agent = agent_of("n0");
  controller.on_event(SetDesiredEvent{desire(1, 1)}, kStart);
  for (int round = 0; round < 3; ++round) exchange(controller, agent, kStart);
  const Decision decision = controller.on_event(agent.heartbeat_event(), kStart + 1s);
  EXPECT_FALSE(decision.state.has_value());
  EXPECT_TRUE(decision.events.empty());
}

TEST(Controller, SplitsBucketsByTheDemandThatEntrypointsReport) {
  Controller controller(kOptions, {});
  controller.start(kStart);
  ModelAgent agent = agent_of("n0");
  controller.on_event(SetDesiredEvent{desire(2, 1, 1)}, kStart);
  exchange(controller, agent, kStart);
  exchange(controller, agent, kStart);
  const auto bucket_list = [](const Controller& one) {
    std::vector<int> list;
    for (const api::admin::ViewWorker& worker : one.state().view.workers) {
      list.push_back(worker.bucket);
    }
    return list;
  };
  ASSERT_EQ(bucket_list(controller), (std::vector<int>{api::admin::kNoBucket, 0, 1}));

  EntrypointReportEvent report{"entrypoint-0",
                               {.incarnation = 1,
                                .sequence = 1,
                                .demand_ns = {50, 0, 0, 50},
                                .costs = {{"prefill-0", 1, {.linear = 1000}}}}};
  const Decision reported = controller.on_event(report, kStart + 1s);
  EXPECT_TRUE(std::get<absl::Status>(reported.reply).ok());
  ASSERT_TRUE(reported.state.has_value()) << "the first cost is published at once";
  EXPECT_EQ(reported.state->view.prefill_cost->cost.linear, 1000);
  EXPECT_EQ(controller.next_timer(), kStart + 2s);

  const std::uint64_t version = controller.state().view.version;
  const Decision split = controller.on_event(TimerEvent{}, kStart + 2s);
  ASSERT_TRUE(split.round.has_value());
  EXPECT_EQ(split.round->outcome, buckets::SplitOutcome::kMoved);
  ASSERT_EQ(split.events.size(), 1U);
  EXPECT_EQ(split.events[0].kind, "buckets_split");
  EXPECT_EQ(split.events[0].subject, "prefill-1");
  EXPECT_EQ(split.events[0].detail, "from 16K-64K to >=256K; instances by bucket now 1, 0, 0, 1");
  EXPECT_EQ(controller.state().view.version, version + 1);
  EXPECT_EQ(bucket_list(controller), (std::vector<int>{api::admin::kNoBucket, 0, 3}));
  const auto instances = list_instances(controller.state(), controller.nodes());
  EXPECT_EQ(instances.at(0).bucket, 0);
  EXPECT_EQ(instances.at(1).bucket, 3);
  EXPECT_EQ(instances.at(2).bucket, api::admin::kNoBucket) << instances.at(2).instance_id;
  EXPECT_EQ(controller.last_demand(), (buckets::Demand{50, 0, 0, 50}));
  EXPECT_FALSE(controller.on_event(report, kStart + 3s).state.has_value()) << "nothing is new";

  // A process that restarts keeps its bucket, and so does everybody when the controller does.
  agent.running["prefill-1"].incarnation = 2;
  exchange(controller, agent, kStart + 3s);
  EXPECT_EQ(bucket_list(controller), (std::vector<int>{api::admin::kNoBucket, 0, 3}));
  Controller second(kOptions, controller.state());
  second.start(kStart + 10s);
  exchange(second, agent, kStart + 10s);
  EXPECT_EQ(bucket_list(second), (std::vector<int>{api::admin::kNoBucket, 0, 3}));
  EXPECT_EQ(second.state().view.prefill_cost, controller.state().view.prefill_cost);
}

TEST(Controller, RefusesReportsOfEntrypointsThatItDoesNotKnow) {
  Controller controller(kOptions, {});
  controller.start(kStart);
  ModelAgent agent = agent_of("n0");
  controller.on_event(SetDesiredEvent{desire(1, 0, 0)}, kStart);
  exchange(controller, agent, kStart);
  for (const char* id : {"entrypoint-0", "prefill-0"}) {
    const Decision decision = controller.on_event(
        EntrypointReportEvent{id, {.incarnation = 1, .sequence = 1, .demand_ns = {1}, .costs = {}}},
        kStart);
    const absl::Status status = std::get<absl::Status>(decision.reply);
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(status.message(), str_cat("there is no entrypoint \"", id, "\" in this cluster"));
  }
}

TEST(Controller, EventIdsHaveNoGapsOverARestart) {
  Controller first(kOptions, {});
  std::vector<std::uint64_t> ids;
  const auto keep = [&](const Decision& decision) {
    for (const api::admin::ClusterEvent& event : decision.events) ids.push_back(event.id);
  };
  keep(first.start(kStart));
  keep(first.on_event(agent_of("n0").join_event(), kStart));
  keep(first.on_event(SetDesiredEvent{desire(1, 1)}, kStart));
  Controller second(kOptions, first.state());
  keep(second.start(kStart + 1s));
  for (std::size_t index = 0; index < ids.size(); ++index) EXPECT_EQ(ids[index], index + 1);
  EXPECT_GE(ids.size(), 5u);
}

/// A cluster under faults: agents crash, are cut off, lose replies or hear them late; controllers
/// crash and start again from what they committed last; counts change. After each step no name
/// runs twice and nothing goes backwards; when the faults end, the cluster becomes what is desired.
class FaultyCluster {
 public:
  explicit FaultyCluster(std::uint32_t seed) : random_(seed) {
    for (int index = 0; index < 3; ++index) agents_.push_back(agent_of(str_cat("n", index)));
    cut_off_.assign(agents_.size(), false);
    down_.assign(agents_.size(), false);
    late_.resize(agents_.size());
    start_controller();
  }

  void run_faults(int steps) {
    for (int step = 0; step < steps; ++step) {
      now_ += std::chrono::milliseconds(pick(400));
      fire_due_timer();
      one_fault_or_exchange();
      check_safety();
    }
  }

  void run_quietly() {
    cut_off_.assign(agents_.size(), false);
    for (std::size_t index = 0; index < agents_.size(); ++index) bring_up(index);
    set_desired();
    for (int round = 0; round < 20; ++round) {
      now_ += 250ms;
      fire_due_timer();
      for (std::size_t index = 0; index < agents_.size(); ++index) talk(index, 0);
      check_safety();
    }
  }

  void check_settled() const {
    std::map<std::string, int> running;
    for (const ModelAgent& agent : agents_) {
      for (const auto& [worker_id, report] : agent.running) {
        ++running[std::string(process_role_name(report.role))];
      }
    }
    EXPECT_EQ(running["prefill"], desired_.prefill);
    EXPECT_EQ(running["decode"], desired_.decode);
    EXPECT_EQ(running["entrypoint"], desired_.entrypoint);
    int ready = 0;
    for (const api::admin::ViewWorker& worker : controller_->state().view.workers) {
      ready += worker.state == WorkerState::kReady ? 1 : 0;
    }
    EXPECT_EQ(ready, desired_.prefill + desired_.decode);
    EXPECT_EQ(controller_->state().view.workers.size(), static_cast<std::size_t>(ready));
    EXPECT_EQ(controller_->state().placements.size(),
              static_cast<std::size_t>(ready + desired_.entrypoint));
  }

 private:
  int pick(int bound) { return static_cast<int>(random_() % static_cast<unsigned>(bound)); }

  /// Runs an event; the decision is durable unless the controller crashes just then.
  std::optional<Decision> apply(const Event& event) {
    Decision decision = controller_->on_event(event, now_);
    if (pick(50) == 0 && faults_allowed_) {
      start_controller();  // crashed before the commit: neither durable nor answered
      return std::nullopt;
    }
    commit(decision);
    return decision;
  }

  void commit(const Decision& decision) {
    if (!decision.state) return;
    EXPECT_EQ(decision.state->version, committed_.version + 1);
    EXPECT_GE(decision.state->epoch, committed_.epoch);
    EXPECT_GE(decision.state->revision, committed_.revision);
    EXPECT_GE(decision.state->view.version, committed_.view.version);
    if (!view::is_same(decision.state->view, committed_.view)) {
      EXPECT_GT(decision.state->view.version, committed_.view.version);
    }
    committed_ = *decision.state;
  }

  void start_controller() {
    controller_.emplace(kOptions, committed_);
    commit(controller_->start(now_));
    EXPECT_GT(committed_.epoch, last_epoch_);
    last_epoch_ = committed_.epoch;
  }

  void fire_due_timer() {
    while (controller_->next_timer() && *controller_->next_timer() <= now_) {
      const TimePoint due = *controller_->next_timer();
      if (!apply(TimerEvent{})) return;
      const std::optional<TimePoint> next = controller_->next_timer();
      ASSERT_TRUE(!next || *next > due) << "a timer that does not go away";
    }
  }

  void set_desired() {
    const DesiredState desired = desire(pick(4), pick(4), pick(2));
    if (apply(SetDesiredEvent{desired})) desired_ = desired;
    if (!faults_allowed_) desired_ = desired;
  }

  void bring_up(std::size_t index) {
    if (!down_[index]) return;
    down_[index] = false;
    agents_[index].restart(str_cat("s", ++sessions_));
    late_[index].reset();
  }

  /// One exchange of one agent. `loss` in percent: the reply is lost or comes late.
  void talk(std::size_t index, int loss) {
    if (down_[index] || cut_off_[index]) return;
    ModelAgent& agent = agents_[index];
    if (late_[index]) {  // one exchange at a time: first the reply that was on its way
      obey(agent, *late_[index]);
      late_[index].reset();
      return;
    }
    if (!agent.has_joined) {
      const std::optional<Decision> joined = apply(agent.join_event());
      agent.has_joined = joined && std::holds_alternative<NodeJoinReply>(joined->reply);
      if (!agent.has_joined) return;
    }
    const std::optional<Decision> decision = apply(agent.heartbeat_event());
    if (!decision) return;
    const auto* reply = std::get_if<HeartbeatReply>(&decision->reply);
    if (reply == nullptr) {
      agent.has_joined = false;
    } else if (pick(100) >= loss) {
      obey(agent, *reply);
    } else if (pick(2) == 0) {
      late_[index] = *reply;
    }
  }

  void obey(ModelAgent& agent, const HeartbeatReply& reply) {
    const std::uint64_t before = agent.epoch;
    agent.obey(reply);
    EXPECT_GE(agent.epoch, before);
  }

  void one_fault_or_exchange() {
    const std::size_t index = static_cast<std::size_t>(pick(static_cast<int>(agents_.size())));
    switch (pick(20)) {
      case 0:
        down_[index] = true;  // its processes die with it
        agents_[index].running.clear();
        return;
      case 1:
        return bring_up(index);
      case 2:
        cut_off_[index] = !cut_off_[index];
        return;
      case 3:
        return start_controller();
      case 4:
        return set_desired();
      case 5:
        now_ += std::chrono::seconds(pick(40));
        return fire_due_timer();
      default:
        return talk(index, 20);
    }
  }

  void check_safety() const {
    std::map<std::string, std::string> where;
    for (const ModelAgent& agent : agents_) {
      for (const auto& [worker_id, report] : agent.running) {
        const auto [it, is_first] = where.emplace(worker_id, agent.node_id);
        ASSERT_TRUE(is_first) << worker_id << " runs on " << it->second << " and " << agent.node_id;
      }
    }
  }

  struct view {
    static bool is_same(const api::admin::RoutingView& a, const api::admin::RoutingView& b) {
      api::admin::RoutingView c = b;
      c.version = a.version;
      return to_json(a) == to_json(c);
    }
  };

 public:
  bool faults_allowed_ = true;

 private:
  std::mt19937 random_;
  TimePoint now_ = kStart;
  std::optional<Controller> controller_;
  StoredState committed_;
  std::uint64_t last_epoch_ = 0;
  std::vector<ModelAgent> agents_;
  std::vector<bool> cut_off_;
  std::vector<bool> down_;
  std::vector<std::optional<HeartbeatReply>> late_;
  DesiredState desired_;
  int sessions_ = 1;
};

TEST(Controller, NoNameEverRunsTwiceAndTheClusterSettlesWhenFaultsEnd) {
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(str_cat("seed ", seed));
    FaultyCluster cluster(seed);
    cluster.run_faults(400);
    cluster.faults_allowed_ = false;
    cluster.run_quietly();
    cluster.check_settled();
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace millrace::controller::core
