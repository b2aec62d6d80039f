#include "agent/core/supervision.h"

#include <gtest/gtest.h>

#include <random>

#include "common/str_cat.h"

namespace millrace::agent::core {
namespace {

using namespace std::chrono_literals;
using api::admin::AssignedProcess;
using api::admin::HeartbeatReply;
using api::admin::ProcessReport;
using api::admin::ProcessRole;
using api::admin::ProcessState;

constexpr TimePoint kStart = TimePoint(1h);
constexpr SupervisionOptions kOptions{.start_timeout = 60'000ms, .stop_grace = 5'000ms};

AssignedProcess process(std::string worker_id, std::string engine = "", std::uint64_t floor = 0) {
  AssignedProcess assigned;
  assigned.spec.role = worker_id.starts_with("entrypoint") ? ProcessRole::kEntrypoint
                       : worker_id.starts_with("decode")   ? ProcessRole::kDecode
                                                           : ProcessRole::kPrefill;
  assigned.spec.instance_id = worker_id;
  assigned.spec.worker_id = std::move(worker_id);
  assigned.spec.engine = std::move(engine);
  assigned.incarnation_floor = floor;
  return assigned;
}

Assigned assign(std::vector<AssignedProcess> processes, std::uint64_t epoch = 1,
                std::uint64_t revision = 1) {
  HeartbeatReply reply;
  reply.epoch = epoch;
  reply.revision = revision;
  reply.assignment = std::move(processes);
  return {reply};
}

/// "start decode-0#1, term decode-0#1"
std::string text(const std::vector<Command>& commands) {
  std::string all;
  for (const Command& command : commands) {
    if (!all.empty()) all += ", ";
    if (const auto* start = std::get_if<StartProcess>(&command)) {
      all += str_cat("start ", start->spec.worker_id, "#", start->incarnation);
    } else {
      const auto& signal = std::get<SignalProcess>(command);
      all += str_cat(signal.signal == StopSignal::kKill ? "kill " : "term ", signal.worker_id, "#",
                     signal.incarnation);
    }
  }
  return all;
}

ProcessReport only_report(const Supervision& supervision) {
  const std::vector<ProcessReport> reports = supervision.report();
  EXPECT_EQ(reports.size(), 1u);
  return reports.empty() ? ProcessReport{} : reports[0];
}

TEST(Supervision, StartsWhatIsAssignedAndReportsIt) {
  Supervision supervision(kOptions, 0);
  EXPECT_EQ(text(supervision.on_event(assign({process("decode-0", "", 7)}), kStart)),
            "start decode-0#8");
  EXPECT_EQ(only_report(supervision).state, ProcessState::kStarting);
  supervision.on_event(Started{"decode-0", 8, 123}, kStart);
  EXPECT_EQ(only_report(supervision).pid, 123);
  EXPECT_EQ(only_report(supervision).address, "");
  supervision.on_event(BecameReady{"decode-0",
                                   8,
                                   {.pid = 123,
                                    .address = "h:1",
                                    .metrics_address = "h:2",
                                    .model_id = "nano",
                                    .artifact_digest_hex = "ab",
                                    .directory_address = "h:3"}},
                       kStart + 1s);
  const ProcessReport report = only_report(supervision);
  EXPECT_EQ(report.directory_address, "h:3");
  EXPECT_EQ(report.state, ProcessState::kReady);
  EXPECT_EQ(report.role, ProcessRole::kDecode);
  EXPECT_EQ(report.incarnation, 8u);
  EXPECT_EQ(report.address, "h:1");
  EXPECT_EQ(report.metrics_address, "h:2");
  EXPECT_EQ(report.model_id, "nano");
  EXPECT_EQ(report.artifact_digest_hex, "ab");
  EXPECT_EQ(text(supervision.on_event(assign({process("decode-0", "", 8)}), kStart + 2s)), "");
  EXPECT_EQ(supervision.next_timer(), std::nullopt);
}

TEST(Supervision, StopsWhatIsNoLongerAssignedAndKillsItAfterTheGrace) {
  Supervision supervision(kOptions, 0);
  supervision.on_event(assign({process("decode-0")}), kStart);
  EXPECT_EQ(text(supervision.on_event(assign({}), kStart + 1s)), "term decode-0#1");
  EXPECT_EQ(only_report(supervision).state, ProcessState::kDraining);
  EXPECT_EQ(supervision.next_timer(), kStart + 6s);
  EXPECT_EQ(text(supervision.on_event(TimerDue{}, kStart + 6s - 1ns)), "");
  EXPECT_EQ(text(supervision.on_event(TimerDue{}, kStart + 6s)), "kill decode-0#1");
  EXPECT_EQ(text(supervision.on_event(TimerDue{}, kStart + 7s)), "") << "once";
  supervision.on_event(Exited{"decode-0", 1, "signal 9"}, kStart + 7s);
  EXPECT_TRUE(supervision.report().empty());
  EXPECT_TRUE(supervision.is_idle());
}

TEST(Supervision, AReplacementWaitsForTheExitOfItsPredecessor) {
  Supervision supervision(kOptions, 0);
  supervision.on_event(assign({process("decode-0", "rounding=on")}), kStart);
  EXPECT_EQ(text(supervision.on_event(assign({process("decode-0", "rounding=off")}), kStart)),
            "term decode-0#1");
  EXPECT_EQ(text(supervision.on_event(TimerDue{}, kStart + 1s)), "");
  EXPECT_EQ(text(supervision.on_event(Exited{"decode-0", 1, "exit code 0"}, kStart + 2s)),
            "start decode-0#2");
  EXPECT_EQ(only_report(supervision).last_error, "") << "it was told to";
  // Removed and wanted again while it drains: the same.
  supervision.on_event(assign({}), kStart + 3s);
  EXPECT_EQ(text(supervision.on_event(assign({process("decode-0", "rounding=off")}), kStart + 3s)),
            "");
  EXPECT_EQ(text(supervision.on_event(Exited{"decode-0", 2, "exit code 0"}, kStart + 4s)),
            "start decode-0#3");
}

TEST(Supervision, BacksOffFromATenthOfASecondToTen) {
  const std::chrono::milliseconds expected[] = {100ms,  200ms,  400ms,   800ms,  1600ms,
                                                3200ms, 6400ms, 10000ms, 10000ms};
  Supervision supervision(kOptions, 0);
  TimePoint now = kStart;
  EXPECT_EQ(text(supervision.on_event(assign({process("decode-0")}), now)), "start decode-0#1");
  std::uint64_t incarnation = 1;
  for (std::chrono::milliseconds pause : expected) {
    supervision.on_event(Exited{"decode-0", incarnation, "exit code 1: no"}, now);
    EXPECT_EQ(supervision.next_timer(), now + pause);
    EXPECT_EQ(only_report(supervision).pid, 0);
    EXPECT_EQ(text(supervision.on_event(TimerDue{}, now + pause - 1ns)), "");
    now += pause;
    ++incarnation;
    EXPECT_EQ(text(supervision.on_event(TimerDue{}, now)), str_cat("start decode-0#", incarnation));
  }
  EXPECT_EQ(backoff(1'000'000), 10s);
}

TEST(Supervision, ThirtySecondsOfHealthStartTheCountAnew) {
  Supervision supervision(kOptions, 0);
  supervision.on_event(assign({process("decode-0")}), kStart);
  supervision.on_event(Exited{"decode-0", 1, "x"}, kStart);
  supervision.on_event(TimerDue{}, kStart + 100ms);
  supervision.on_event(BecameReady{"decode-0", 2, {}}, kStart + 1s);
  supervision.on_event(Exited{"decode-0", 2, "x"}, kStart + 31s - 1ms);
  EXPECT_EQ(supervision.next_timer(), kStart + 31s - 1ms + 200ms) << "not healthy for long enough";
  supervision.on_event(TimerDue{}, kStart + 32s);
  supervision.on_event(BecameReady{"decode-0", 3, {}}, kStart + 40s);
  supervision.on_event(Exited{"decode-0", 3, "x"}, kStart + 70s);
  EXPECT_EQ(supervision.next_timer(), kStart + 70s + 100ms);
}

TEST(Supervision, FiveStartsThatNeverBecameReadyAreReportedAsFailing) {
  Supervision supervision(kOptions, 0);
  TimePoint now = kStart;
  supervision.on_event(assign({process("decode-0")}), now);
  for (std::uint64_t incarnation = 1; incarnation <= 5; ++incarnation) {
    supervision.on_event(Exited{"decode-0", incarnation, "exit code 1: tensor x is missing"}, now);
    const ProcessReport report = only_report(supervision);
    EXPECT_EQ(report.state, incarnation < 5 ? ProcessState::kBackoff : ProcessState::kFailing);
    EXPECT_EQ(report.last_error, "exit code 1: tensor x is missing");
    EXPECT_EQ(report.restarts, incarnation);
    now += 20s;
    supervision.on_event(TimerDue{}, now);
  }
  // It still tries, and another spec gets another chance at once.
  supervision.on_event(Exited{"decode-0", 6, "x"}, now);
  EXPECT_EQ(only_report(supervision).state, ProcessState::kFailing);
  EXPECT_EQ(text(supervision.on_event(assign({process("decode-0", "rounding=off")}), now)),
            "start decode-0#7");
}

TEST(Supervision, AProcessThatWasReadyBeforeIsNotCalledFailing) {
  Supervision supervision(kOptions, 0);
  TimePoint now = kStart;
  supervision.on_event(assign({process("decode-0")}), now);
  supervision.on_event(BecameReady{"decode-0", 1, {}}, now);
  for (std::uint64_t incarnation = 1; incarnation <= 9; ++incarnation) {
    supervision.on_event(Exited{"decode-0", incarnation, "x"}, now);
    EXPECT_EQ(only_report(supervision).state, ProcessState::kBackoff);
    now += 20s;
    supervision.on_event(TimerDue{}, now);
  }
}

TEST(Supervision, AStartThatTakesTooLongIsKilledAndSaysSo) {
  Supervision supervision(kOptions, 0);
  supervision.on_event(assign({process("decode-0")}), kStart);
  EXPECT_EQ(supervision.next_timer(), kStart + 60s);
  EXPECT_EQ(text(supervision.on_event(TimerDue{}, kStart + 60s)), "kill decode-0#1");
  supervision.on_event(Exited{"decode-0", 1, "signal 9 (Killed)"}, kStart + 60s);
  EXPECT_EQ(only_report(supervision).last_error, "not ready after 60 s");
  EXPECT_EQ(only_report(supervision).state, ProcessState::kBackoff);
}

TEST(Supervision, AProgramThatCannotBeStartedBacksOff) {
  Supervision supervision(kOptions, 0);
  supervision.on_event(assign({process("decode-0")}), kStart);
  supervision.on_event(StartFailed{"decode-0", 1, "cannot start /x: No such file"}, kStart);
  EXPECT_EQ(only_report(supervision).last_error, "cannot start /x: No such file");
  EXPECT_EQ(supervision.next_timer(), kStart + 100ms);
}

TEST(Supervision, OlderEpochsAndRevisionsAreRefused) {
  Supervision supervision(kOptions, 5);
  EXPECT_EQ(text(supervision.on_event(assign({process("decode-0")}, 4, 99), kStart)), "");
  EXPECT_EQ(supervision.last_verdict(), AssignmentVerdict::kOldEpoch);
  EXPECT_EQ(supervision.epoch(), 5u);
  EXPECT_EQ(text(supervision.on_event(assign({process("decode-0")}, 5, 7), kStart)),
            "start decode-0#1");
  EXPECT_EQ(supervision.last_verdict(), AssignmentVerdict::kTaken);
  EXPECT_EQ(text(supervision.on_event(assign({}, 5, 6), kStart)), "");
  EXPECT_EQ(supervision.last_verdict(), AssignmentVerdict::kOldRevision);
  // A new epoch counts its revisions anew.
  EXPECT_EQ(text(supervision.on_event(assign({}, 6, 1), kStart)), "term decode-0#1");
  EXPECT_EQ(supervision.epoch(), 6u);
  EXPECT_EQ(supervision.revision(), 1u);
}

TEST(Supervision, AReplyWithoutAnAssignmentChangesNothing) {
  Supervision supervision(kOptions, 0);
  supervision.on_event(assign({process("decode-0")}), kStart);
  HeartbeatReply reply;
  reply.epoch = 2;
  EXPECT_EQ(text(supervision.on_event(Assigned{reply}, kStart)), "");
  EXPECT_EQ(supervision.epoch(), 2u);
  EXPECT_EQ(supervision.report().size(), 1u);
}

TEST(Supervision, NewsOfAnEarlierIncarnationAreIgnored) {
  Supervision supervision(kOptions, 0);
  supervision.on_event(assign({process("decode-0")}), kStart);
  supervision.on_event(Exited{"decode-0", 1, "x"}, kStart);
  supervision.on_event(TimerDue{}, kStart + 1s);
  EXPECT_EQ(text(supervision.on_event(Exited{"decode-0", 1, "again"}, kStart + 1s)), "");
  supervision.on_event(BecameReady{"decode-0", 1, {}}, kStart + 1s);
  EXPECT_EQ(only_report(supervision).state, ProcessState::kStarting);
  EXPECT_EQ(only_report(supervision).last_error, "x");
}

TEST(Supervision, AShutDownStopsEntrypointsBeforeEngines) {
  Supervision supervision(kOptions, 0);
  supervision.on_event(assign({process("decode-0"), process("entrypoint-0"), process("prefill-0")}),
                       kStart);
  EXPECT_EQ(text(supervision.on_event(ShutDown{}, kStart)), "term entrypoint-0#1");
  EXPECT_FALSE(supervision.is_idle());
  EXPECT_EQ(text(supervision.on_event(Exited{"entrypoint-0", 1, "exit code 0"}, kStart + 1s)),
            "term decode-0#1, term prefill-0#1");
  EXPECT_EQ(text(supervision.on_event(assign({process("decode-1")}, 1, 2), kStart + 1s)), "")
      << "nothing new is started";
  supervision.on_event(Exited{"decode-0", 1, "exit code 0"}, kStart + 2s);
  EXPECT_FALSE(supervision.is_idle());
  supervision.on_event(Exited{"prefill-0", 1, "exit code 0"}, kStart + 2s);
  EXPECT_TRUE(supervision.is_idle());
  EXPECT_TRUE(supervision.report().empty());
}

TEST(Supervision, TheSecondShutDownKillsEverythingAtOnce) {
  Supervision supervision(kOptions, 0);
  supervision.on_event(assign({process("decode-0"), process("entrypoint-0")}), kStart);
  supervision.on_event(ShutDown{}, kStart);
  EXPECT_EQ(text(supervision.on_event(ShutDownNow{}, kStart + 1s)),
            "kill decode-0#1, kill entrypoint-0#1");
}

/// Random assignments and a random machine that starts, readies, crashes and stops processes, or
/// hangs. Checked all along: at most one process per name, incarnations grow, no start comes sooner
/// than its back-off. When the faults end, exactly what is assigned runs and is ready.
class FaultyNode {
 public:
  explicit FaultyNode(std::uint32_t seed) : random_(seed), supervision_(kOptions, 0) {}

  void run_faults(int steps) {
    for (int step = 0; step < steps; ++step) {
      now_ += std::chrono::milliseconds(pick(pick(10) == 0 ? 20000 : 300));
      one_event();
      feed(TimerDue{});
    }
  }

  void run_quietly() {
    for (int round = 0; round < 60; ++round) {
      now_ += 1s;
      std::vector<Event> events;
      for (const auto& [worker_id, running] : machine_) {
        if (running.is_told_to_stop || running.is_killed) {
          events.push_back(Exited{worker_id, running.incarnation, "exit code 0"});
        } else if (!running.is_ready) {
          events.push_back(BecameReady{worker_id, running.incarnation, {}});
        }
      }
      for (const Event& event : events) happen(event);
      feed(TimerDue{});
    }
    ASSERT_EQ(machine_.size(), assigned_.size());
    for (const ProcessReport& report : supervision_.report()) {
      EXPECT_EQ(report.state, ProcessState::kReady) << report.worker_id;
      EXPECT_EQ(machine_.at(report.worker_id).engine, assigned_.at(report.worker_id));
    }
  }

 private:
  struct Running {
    std::uint64_t incarnation = 0;
    std::string engine;
    bool is_ready = false;
    bool is_told_to_stop = false;
    bool is_killed = false;
  };

  int pick(int bound) { return static_cast<int>(random_() % static_cast<unsigned>(bound)); }

  void one_event() {
    if (machine_.empty() || pick(6) == 0) return reassign();
    auto it = machine_.begin();
    std::advance(it, pick(static_cast<int>(machine_.size())));
    const auto& [worker_id, running] = *it;
    switch (pick(4)) {
      case 0:
        return happen(Exited{worker_id, running.incarnation, "crashed"});
      case 1:
        if (!running.is_ready) happen(BecameReady{worker_id, running.incarnation, {}});
        return;
      case 2:
        if (running.is_killed) happen(Exited{worker_id, running.incarnation, "killed"});
        return;
      default:
        return;  // it hangs
    }
  }

  void reassign() {
    std::vector<AssignedProcess> processes;
    const std::map<std::string, std::string> before = std::exchange(assigned_, {});
    for (const char* worker_id : {"prefill-0", "decode-0", "decode-1", "entrypoint-0"}) {
      if (pick(3) == 0) continue;
      const std::string engine = pick(4) == 0 ? "rounding=off" : "";
      processes.push_back(process(worker_id, engine, static_cast<std::uint64_t>(pick(20))));
      assigned_[worker_id] = engine;
    }
    // What is taken away or changed in between starts afresh.
    std::erase_if(earliest_, [&](const auto& entry) {
      const auto old = before.find(entry.first);
      const auto now = assigned_.find(entry.first);
      return old == before.end() || now == assigned_.end() || old->second != now->second;
    });
    feed(assign(std::move(processes), 1, ++revision_));
  }

  /// An event about a process, as the machine would tell it.
  void happen(const Event& event) {
    if (const auto* exited = std::get_if<Exited>(&event)) {
      const Running& running = machine_.at(exited->worker_id);
      if (!running.is_told_to_stop) earliest_[exited->worker_id] = now_ + kFirstBackoff;
      machine_.erase(exited->worker_id);
    } else if (const auto* ready = std::get_if<BecameReady>(&event)) {
      machine_.at(ready->worker_id).is_ready = true;
    }
    feed(event);
  }

  void feed(const Event& event) {
    for (const Command& command : supervision_.on_event(event, now_)) obey(command);
  }

  void obey(const Command& command) {
    if (const auto* signal = std::get_if<SignalProcess>(&command)) {
      Running& running = machine_.at(signal->worker_id);
      ASSERT_EQ(running.incarnation, signal->incarnation);
      (signal->signal == StopSignal::kKill ? running.is_killed : running.is_told_to_stop) = true;
      return;
    }
    const auto& start = std::get<StartProcess>(command);
    const std::string& worker_id = start.spec.worker_id;
    ASSERT_FALSE(machine_.contains(worker_id)) << "two processes for " << worker_id;
    ASSERT_GT(start.incarnation, newest_[worker_id]);
    ASSERT_GE(now_, earliest_[worker_id]);
    newest_[worker_id] = start.incarnation;
    machine_[worker_id] = Running{start.incarnation, start.spec.engine, false, false, false};
  }

  std::mt19937 random_;
  TimePoint now_ = kStart;
  Supervision supervision_;
  std::uint64_t revision_ = 0;
  std::map<std::string, std::string> assigned_;  // to their engine switches
  std::map<std::string, Running> machine_;
  std::map<std::string, TimePoint> earliest_;
  std::map<std::string, std::uint64_t> newest_;
};

TEST(Supervision, NeverRunsANameTwiceAndSettlesWhenFaultsEnd) {
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(str_cat("seed ", seed));
    FaultyNode node(seed);
    node.run_faults(300);
    node.run_quietly();
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace millrace::agent::core
