#include "api/entrypoint/demand_reporter.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "api/entrypoint/fake_cluster.h"
#include "common/http/http_server.h"

namespace millrace::api::entrypoint {
namespace {

using namespace std::chrono_literals;
using admin::EntrypointReport;
using common::http::EventLoop;
using common::http::HttpServer;
using common::http::ServerRequest;
using test::eventually;

const Logger kSilent = Logger::to_sink("entrypoint", LogLevel::kOff, [](std::string_view) {});

EntrypointReport sample_report() {
  return {.incarnation = 6,
          .sequence = 0,
          .demand_ns = {1, 2, 3, 4},
          .costs = {{"prefill-0", 2, {.linear = 5}}}};
}

/// A controller that takes reports, and answers with a status of choice.
class Controller {
 public:
  Controller() {
    common::http::HttpServerOptions options;
    options.listen = "127.0.0.1:0";
    options.error_reply = [](int, std::string_view, std::string_view) {
      return common::http::ServerReply();
    };
    server_ = *HttpServer::start(loop_, options);
    server_->route(
        "POST", "/api/v1/entrypoints/entrypoint-7/report",
        [this](const ServerRequest& request, std::unique_ptr<common::http::ResponseWriter> writer) {
          take(request.body);
          common::http::ServerReply reply;
          reply.status = status;
          writer->respond(std::move(reply));
        });
    thread_ = std::thread([this] { loop_.run(); });
  }
  ~Controller() {
    loop_.stop();
    thread_.join();
  }

  std::string url() const { return "http://" + server_->address(); }
  std::vector<EntrypointReport> reports() {
    const std::lock_guard lock(mutex_);
    return reports_;
  }

  std::atomic<int> status = 204;

 private:
  void take(const std::string& body) {
    absl::StatusOr<EntrypointReport> report = admin::parse_entrypoint_report(body);
    EXPECT_TRUE(report.ok()) << report.status();
    const std::lock_guard lock(mutex_);
    if (report.ok()) reports_.push_back(*std::move(report));
  }

  EventLoop loop_;
  std::unique_ptr<HttpServer> server_;
  std::mutex mutex_;
  std::vector<EntrypointReport> reports_;  // guarded by mutex_
  std::thread thread_;
};

/// The loop of an entrypoint, with a reporter on it.
class Entrypoint {
 public:
  Entrypoint(const std::string& controller_url, Logger log,
             std::function<EntrypointReport()> collect)
      : thread_([this] { loop_.run(); }),
        reporter_(std::make_unique<DemandReporter>(loop_, std::move(log), controller_url,
                                                   "entrypoint-7", 1ms, std::move(collect))) {}
  /// As a process ends: the loop first, then what lives on it.
  ~Entrypoint() {
    loop_.stop();
    thread_.join();
    reporter_.reset();
  }
  EventLoop& loop() { return loop_; }
  std::thread::id thread_id() const { return thread_.get_id(); }
  /// On the loop.
  void end_reporter() { reporter_.reset(); }

 private:
  EventLoop loop_;
  std::thread thread_;
  std::unique_ptr<DemandReporter> reporter_;
};

TEST(DemandReporter, SendsWhatIsCollectedOnTheLoopWithRisingSequences) {
  Controller controller;
  std::mutex mutex;
  std::thread::id collected_on;
  Entrypoint entrypoint(controller.url(), kSilent, [&] {
    const std::lock_guard lock(mutex);
    collected_on = std::this_thread::get_id();
    return sample_report();
  });
  ASSERT_TRUE(eventually([&] { return controller.reports().size() >= 3; }));
  std::uint64_t sequence = 0;
  for (const EntrypointReport& report : controller.reports()) {
    EntrypointReport expected = sample_report();
    expected.sequence = ++sequence;
    EXPECT_EQ(report, expected);
  }
  const std::lock_guard lock(mutex);
  EXPECT_EQ(collected_on, entrypoint.thread_id());
}

TEST(DemandReporter, AControllerThatRefusesIsToldAgainAndLoggedOnce) {
  Controller controller;
  controller.status = 404;
  std::atomic<int> warnings = 0;
  std::atomic<int> recoveries = 0;
  const Logger log = Logger::to_sink("entrypoint", LogLevel::kInfo, [&](std::string_view line) {
    if (line.find("demand_not_reported") != std::string_view::npos) ++warnings;
    if (line.find("demand_reported_again") != std::string_view::npos) ++recoveries;
  });
  Entrypoint entrypoint(controller.url(), log, &sample_report);
  ASSERT_TRUE(eventually([&] { return controller.reports().size() >= 3; }));
  EXPECT_EQ(warnings, 1);
  controller.status = 204;
  EXPECT_TRUE(eventually([&] { return recoveries == 1; }));
}

TEST(DemandReporter, EndsWithoutAControllerAndWithoutALoopThatRuns) {
  std::atomic<int> collected = 0;
  {
    // Port 9 of this machine: nobody answers.
    Entrypoint entrypoint("http://127.0.0.1:9", kSilent, [&] {
      ++collected;
      return sample_report();
    });
    EXPECT_TRUE(eventually([&] { return collected >= 3; })) << "it must go on";
  }
  collected = 0;
  EventLoop never_runs;
  {
    const DemandReporter reporter(never_runs, kSilent, "http://127.0.0.1:9", "entrypoint-7", 1ms,
                                  [&] {
                                    ++collected;
                                    return sample_report();
                                  });
  }
  never_runs.post([&] { never_runs.stop(); });
  never_runs.run();
  EXPECT_EQ(collected, 0)
      << "a call that waited on the loop must not run once the reporter is gone";
}

TEST(DemandReporter, EndsOnALoopThatRuns) {
  Controller controller;
  Entrypoint entrypoint(controller.url(), kSilent, &sample_report);
  ASSERT_TRUE(eventually([&] { return !controller.reports().empty(); }));
  std::promise<void> ended;
  entrypoint.loop().post([&] {
    entrypoint.end_reporter();
    ended.set_value();
  });
  EXPECT_EQ(ended.get_future().wait_for(60s), std::future_status::ready);
}

}  // namespace
}  // namespace millrace::api::entrypoint
