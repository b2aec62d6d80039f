#include "controller/server/service.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "api/admin/entrypoint_report.h"
#include "api/admin/view.h"
#include "common/http/http_client.h"
#include "common/json.h"
#include "common/str_cat.h"
#include "common/types.h"
#include "controller/server/routes.h"

namespace millrace::controller::server {
namespace {

using namespace std::chrono_literals;
using common::http::HttpClient;
using common::http::HttpResponse;
using common::http::RestServer;

constexpr char kDesired[] =
    R"({"prefill":1,"decode":1,"entrypoint":1,"model_dir":"/models/nano","model_id":"nano"})";

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = ::testing::TempDir() + "service_test_XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// A whole controller in this process, on a real socket.
class RunningController {
 public:
  explicit RunningController(const std::string& folder,
                             std::chrono::milliseconds node_timeout = 60s) {
    absl::StatusOr<std::unique_ptr<state::Store>> store = state::Store::open(folder);
    EXPECT_TRUE(store.ok()) << store.status();
    const Logger log = Logger::to_sink("controller", LogLevel::kOff, [](std::string_view) {});
    service_ = std::move(*Service::start(
        {.heartbeat_interval = 50ms, .node_timeout = node_timeout, .new_storage_cluster_id = "c1"},
        std::move(*store), log, registry_));
    server_ = std::move(*RestServer::start({.listen = "127.0.0.1:0"}, routes(*service_)));
  }
  ~RunningController() { server_->stop(); }

  std::string url(std::string_view path) const {
    return str_cat("http://", server_->address(), path);
  }

 private:
  Registry registry_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<RestServer> server_;
};

HttpResponse get(const RunningController& controller, std::string_view path) {
  HttpClient client;
  absl::StatusOr<HttpResponse> response = client.get(controller.url(path));
  EXPECT_TRUE(response.ok()) << response.status();
  return response.ok() ? *response : HttpResponse{};
}

HttpResponse send(const RunningController& controller, std::string method, std::string_view path,
                  std::string body) {
  HttpClient client;
  absl::StatusOr<HttpResponse> response = client.send({.method = std::move(method),
                                                       .url = controller.url(path),
                                                       .body = std::move(body),
                                                       .content_type = "application/json",
                                                       .headers = {}});
  EXPECT_TRUE(response.ok()) << response.status();
  return response.ok() ? *response : HttpResponse{};
}

api::admin::RoutingView view_of(const RunningController& controller) {
  absl::StatusOr<api::admin::RoutingView> view =
      api::admin::parse_routing_view(get(controller, "/api/v1/view").body);
  EXPECT_TRUE(view.ok()) << view.status();
  return view.ok() ? *view : api::admin::RoutingView{};
}

HttpResponse join(const RunningController& controller, std::string session_id = "s1",
                  std::uint64_t epoch = 0) {
  const api::admin::NodeJoin join = {.protocol_version = kProtocolVersion,
                                     .node_id = "n0",
                                     .host_id = "h0",
                                     .session_id = std::move(session_id),
                                     .address = "127.0.0.1:1",
                                     .epoch = epoch};
  return send(controller, "POST", "/api/v1/nodes", to_json(join));
}

/// Reports that everything assigned is ready.
api::admin::HeartbeatReply report(const RunningController& controller,
                                  const api::admin::HeartbeatReply& last) {
  api::admin::Heartbeat heartbeat;
  heartbeat.session_id = "s1";
  heartbeat.epoch = last.epoch;
  heartbeat.revision = last.revision;
  if (last.assignment) {
    for (const api::admin::AssignedProcess& process : *last.assignment) {
      api::admin::ProcessReport ready;
      ready.worker_id = process.spec.worker_id;
      ready.role = process.spec.role;
      ready.state = api::admin::ProcessState::kReady;
      ready.incarnation = 1;
      ready.pid = 99;
      ready.address = "127.0.0.1:7000";
      ready.model_id = process.spec.model_id;
      ready.artifact_digest_hex = "ab";
      heartbeat.processes.push_back(ready);
    }
  }
  const HttpResponse response =
      send(controller, "POST", "/api/v1/nodes/n0/heartbeat", to_json(heartbeat));
  EXPECT_EQ(response.status, 200) << response.body;
  absl::StatusOr<api::admin::HeartbeatReply> reply =
      api::admin::parse_heartbeat_reply(response.body);
  EXPECT_TRUE(reply.ok()) << reply.status();
  return reply.ok() ? *reply : api::admin::HeartbeatReply{};
}

TEST(Service, ANodeJoinsIsAssignedAndAppearsInTheView) {
  TemporaryFolder folder;
  RunningController controller(folder.path());
  EXPECT_EQ(get(controller, "/api/v1/desired").status, 404);
  EXPECT_EQ(send(controller, "PUT", "/api/v1/desired", kDesired).status, 200);
  EXPECT_EQ(get(controller, "/api/v1/desired").status, 200);

  const HttpResponse joined = join(controller);
  EXPECT_EQ(joined.status, 200) << joined.body;
  EXPECT_EQ(api::admin::parse_node_join_reply(joined.body)->node_timeout, 60s);
  const api::admin::HeartbeatReply first = report(controller, {});
  ASSERT_TRUE(first.assignment.has_value());
  ASSERT_EQ(first.assignment->size(), 3u);
  EXPECT_EQ((*first.assignment)[2].spec.listen, "127.0.0.1:8000");
  EXPECT_TRUE(view_of(controller).workers.empty());
  report(controller, first);
  const api::admin::RoutingView view = view_of(controller);
  ASSERT_EQ(view.workers.size(), 2u);
  EXPECT_EQ(view.workers[0].worker_id, "decode-0");
  EXPECT_EQ(view.model_id, "nano");
  EXPECT_EQ(view.artifact_digest_hex, "ab");

  auto instances = api::admin::parse_instances(get(controller, "/api/v1/instances").body);
  ASSERT_TRUE(instances.ok()) << instances.status();
  EXPECT_EQ(instances->size(), 3u);
  auto nodes = api::admin::parse_nodes(get(controller, "/api/v1/nodes").body);
  ASSERT_TRUE(nodes.ok()) << nodes.status();
  EXPECT_EQ(nodes->at(0).processes.size(), 3u);
  EXPECT_TRUE(nodes->at(0).is_alive);
  const std::string metrics = get(controller, "/metrics").body;
  EXPECT_NE(metrics.find("millrace_controller_nodes{state=\"alive\"} 1"), std::string::npos);
  EXPECT_NE(metrics.find("millrace_controller_desired_workers{role=\"decode\"} 1"),
            std::string::npos);
  EXPECT_EQ(get(controller, "/health").status, 200);
}

TEST(Service, ASilentNodeLeavesTheViewWithoutAnybodyAsking) {
  TemporaryFolder folder;
  RunningController controller(folder.path(), 400ms);
  send(controller, "PUT", "/api/v1/desired", kDesired);
  join(controller);
  report(controller, report(controller, {}));
  const auto is_dead = [&] {
    const auto list = api::admin::parse_event_list(get(controller, "/api/v1/events").body);
    return std::any_of(list->events.begin(), list->events.end(), [](const auto& event) {
      return event.kind == "node_dead" && event.subject == "n0";
    });
  };
  const auto deadline = std::chrono::steady_clock::now() + 120s;
  while (!is_dead()) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    std::this_thread::sleep_for(10ms);
  }
  EXPECT_TRUE(view_of(controller).workers.empty());
}

TEST(Service, EntrypointsReportDemandAndBucketsAreShown) {
  TemporaryFolder folder;
  RunningController controller(folder.path());
  send(controller, "PUT", "/api/v1/desired", kDesired);
  join(controller);
  report(controller, report(controller, {}));
  api::admin::EntrypointReport demand{.incarnation = 1,
                                      .sequence = 1,
                                      .demand_ns = {5, 0, 0, 0},
                                      .costs = {{"prefill-0", 1, {.linear = 250}}}};
  const std::string path = "/api/v1/entrypoints/entrypoint-0/report";
  const HttpResponse accepted = send(controller, "POST", path, to_json(demand));
  EXPECT_EQ(accepted.status, 204) << accepted.body;
  const api::admin::RoutingView view = view_of(controller);
  ASSERT_EQ(view.workers.size(), 2U);
  EXPECT_EQ(view.workers[1].bucket, 0);
  ASSERT_TRUE(view.prefill_cost.has_value());
  EXPECT_EQ(view.prefill_cost->cost.linear, 250);
  const std::string metrics = get(controller, "/metrics").body;
  for (const char* line :
       {"millrace_bucket_instances{bucket=\"0\"} 1", "millrace_bucket_moves_total 0",
        "millrace_bucket_instances{bucket=\"3\"} 0",
        "millrace_bucket_demand_seconds{bucket=\"0\"} ", "millrace_prefill_cost_version 1"}) {
    EXPECT_NE(metrics.find(line), std::string::npos) << line;
  }

  const HttpResponse unknown =
      send(controller, "POST", "/api/v1/entrypoints/entrypoint-9/report", to_json(demand));
  EXPECT_EQ(unknown.status, 404);
  EXPECT_NE(unknown.body.find("entrypoint-9"), std::string::npos) << unknown.body;
  demand.demand_ns.pop_back();
  const HttpResponse few = send(controller, "POST", path, to_json(demand));
  EXPECT_EQ(few.status, 400);
  EXPECT_NE(few.body.find("demand_ns"), std::string::npos) << few.body;
  const HttpResponse bad = send(controller, "POST", path, R"({"incarnation":-1})");
  EXPECT_EQ(bad.status, 400);
  EXPECT_NE(bad.body.find("incarnation"), std::string::npos) << bad.body;
}

TEST(Service, EventsAreListedFromAnId) {
  TemporaryFolder folder;
  RunningController controller(folder.path());
  send(controller, "PUT", "/api/v1/desired", kDesired);
  join(controller);
  auto all = api::admin::parse_event_list(get(controller, "/api/v1/events").body);
  ASSERT_TRUE(all.ok()) << all.status();
  ASSERT_GE(all->events.size(), 3u);
  EXPECT_EQ(all->oldest_id, 1u);
  EXPECT_EQ(all->events[0].kind, "controller_started");
  EXPECT_GT(all->events[0].unix_time_ms, 1'600'000'000'000);
  auto later = api::admin::parse_event_list(get(controller, "/api/v1/events?after=2").body);
  ASSERT_TRUE(later.ok());
  EXPECT_EQ(later->events.size(), all->events.size() - 2);
  EXPECT_EQ(later->events[0].id, 3u);
  for (const char* query : {"?after=", "?after=-1", "?after=x", "?after=1x", "?before=1",
                            "?after=99999999999999999999"}) {
    EXPECT_EQ(get(controller, str_cat("/api/v1/events", query)).status, 400) << query;
  }
}

TEST(Service, BadRequestsNameTheFieldAndKnownConflictsAre409) {
  TemporaryFolder folder;
  RunningController controller(folder.path());
  const HttpResponse bad =
      send(controller, "PUT", "/api/v1/desired",
           R"({"prefill":"many","decode":1,"entrypoint":1,"model_dir":"/m","model_id":"m"})");
  EXPECT_EQ(bad.status, 400);
  EXPECT_NE(bad.body.find("prefill"), std::string::npos) << bad.body;
  EXPECT_EQ(send(controller, "PUT", "/api/v1/desired", "{").status, 400);
  EXPECT_EQ(send(controller, "POST", "/api/v1/nodes", "[]").status, 400);
  EXPECT_EQ(send(controller, "POST", "/api/v1/nodes/n0/heartbeat",
                 R"({"session_id":"s","epoch":0,"revision":0,"processes":[]})")
                .status,
            404);
  EXPECT_EQ(join(controller, "s1").status, 200);
  const HttpResponse second = join(controller, "s2");
  EXPECT_EQ(second.status, 409);
  EXPECT_NE(second.body.find("another agent"), std::string::npos) << second.body;
  EXPECT_EQ(send(controller, "DELETE", "/api/v1/nodes", "").status, 405);
  EXPECT_EQ(get(controller, "/api/v2/view").status, 404);
}

TEST(Service, ARestartKeepsDesiredViewAndEventsAndRaisesTheEpoch) {
  TemporaryFolder folder;
  api::admin::RoutingView before;
  std::string desired;
  std::size_t event_count = 0;
  {
    RunningController controller(folder.path());
    send(controller, "PUT", "/api/v1/desired", kDesired);
    join(controller);
    report(controller, report(controller, {}));
    before = view_of(controller);
    desired = get(controller, "/api/v1/desired").body;
    event_count =
        api::admin::parse_event_list(get(controller, "/api/v1/events").body)->events.size();
  }
  RunningController controller(folder.path());
  EXPECT_EQ(get(controller, "/api/v1/desired").body, desired);
  const api::admin::RoutingView after = view_of(controller);
  EXPECT_EQ(after.epoch, before.epoch + 1);
  EXPECT_GT(after.version, before.version);
  EXPECT_EQ(after.workers.size(), before.workers.size()) << "the agents were not heard yet";
  EXPECT_EQ(api::admin::parse_event_list(get(controller, "/api/v1/events").body)->events.size(),
            event_count + 1);
  // An agent that obeyed a later epoch elsewhere is outranked.
  EXPECT_EQ(api::admin::parse_node_join_reply(join(controller, "s1", 50).body)->epoch, 51u);
}

TEST(Service, EveryRouteIsDescribedAndEveryDescriptionIsARoute) {
  // "  /path:" begins a path of the description, "    get:" one of its methods.
  std::set<std::string> described;
  std::ifstream file(MILLRACE_SOURCE_DIR "/api/admin/openapi.yaml");
  ASSERT_TRUE(file.is_open());
  std::string path;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("  /")) path = line.substr(2, line.size() - 3);
    if (line == "components:") break;
    for (const char* method : {"GET", "POST", "PUT", "DELETE"}) {
      std::string lower;
      for (const char* c = method; *c != 0; ++c) lower.push_back(static_cast<char>(*c + 32));
      if (line == "    " + lower + ":") described.insert(str_cat(method, " ", path));
    }
  }
  EXPECT_EQ(described.erase("GET /api/v1/state"), 1u) << "the agent's";

  TemporaryFolder folder;
  Registry registry;
  const Logger log = Logger::to_sink("controller", LogLevel::kOff, [](std::string_view) {});
  auto service = Service::start({}, std::move(*state::Store::open(folder.path())), log, registry);
  ASSERT_TRUE(service.ok()) << service.status();
  std::set<std::string> served;
  for (const common::http::RestRoute& route : routes(**service)) {
    served.insert(str_cat(route.method, " ", route.pattern));
  }
  EXPECT_EQ(served, described);
}

TEST(Service, ManyAgentsAtOnceAreAllAnswered) {
  TemporaryFolder folder;
  RunningController controller(folder.path());
  constexpr int kAgents = 8;
  std::vector<std::thread> agents;
  agents.reserve(kAgents);
  std::atomic<int> answered = 0;
  for (int index = 0; index < kAgents; ++index) {
    agents.emplace_back([&, index] {
      HttpClient client;
      const std::string node_id = str_cat("node-", index);
      const api::admin::NodeJoin join = {.protocol_version = kProtocolVersion,
                                         .node_id = node_id,
                                         .host_id = "h",
                                         .session_id = "s",
                                         .address = "127.0.0.1:1",
                                         .epoch = 0};
      if (!client.post(controller.url("/api/v1/nodes"), to_json(join)).ok()) return;
      api::admin::Heartbeat heartbeat;
      heartbeat.session_id = "s";
      for (int beat = 0; beat < 50; ++beat) {
        absl::StatusOr<HttpResponse> response = client.post(
            controller.url(str_cat("/api/v1/nodes/", node_id, "/heartbeat")), to_json(heartbeat));
        if (response.ok() && response->status == 200) ++answered;
      }
    });
  }
  for (std::thread& agent : agents) agent.join();
  EXPECT_EQ(answered, 8 * 50);
}

}  // namespace
}  // namespace millrace::controller::server
