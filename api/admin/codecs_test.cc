#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "api/admin/cluster.h"
#include "api/admin/entrypoint_report.h"
#include "api/admin/id.h"
#include "api/admin/node.h"
#include "api/admin/process.h"
#include "api/admin/view.h"
#include "common/json.h"
#include "common/str_cat.h"

namespace millrace::api::admin {
namespace {

ProcessReport sample_report() {
  ProcessReport report;
  report.worker_id = "decode-3";
  report.role = ProcessRole::kDecode;
  report.state = ProcessState::kReady;
  report.incarnation = 7;
  report.pid = 4242;
  report.address = "127.0.0.1:9001";
  report.metrics_address = "127.0.0.1:9002";
  report.model_id = "nano";
  report.artifact_digest_hex = "00ff";
  report.directory_address = "127.0.0.1:3";
  report.restarts = 2;
  report.last_error = "exit code 1: tensor \"x\" is missing";
  return report;
}

Heartbeat sample_heartbeat() {
  Heartbeat heartbeat;
  heartbeat.session_id = "12-34";
  heartbeat.epoch = 5;
  heartbeat.revision = 6;
  heartbeat.is_leaving = true;
  heartbeat.processes = {sample_report()};
  return heartbeat;
}

HeartbeatReply sample_reply() {
  HeartbeatReply reply;
  reply.epoch = 5;
  reply.revision = 9;
  AssignedProcess process;
  process.spec = {.worker_id = "prefill-0",
                  .instance_id = "prefill-0",
                  .role = ProcessRole::kPrefill,
                  .model_dir = "/models/nano",
                  .model_id = "nano",
                  .engine = "rounding=off",
                  .listen = "",
                  .kv_blocks = 100,
                  .max_sequences = 8,
                  .step_rows = 256,
                  .targets = 12,
                  .target_bytes = 1 << 30,
                  .uses_kv_store = true,
                  .fetch_bytes = 1 << 28,
                  .window_bytes = 1351680,
                  .window_pool_bytes = 1 << 27};
  process.incarnation_floor = 11;
  reply.assignment = {process};
  return reply;
}

DesiredState sample_desired() {
  return {.prefill = 2,
          .decode = 3,
          .entrypoint = 1,
          .model_dir = "/models/nano",
          .model_id = "nano",
          .engine = "decoder_replay=off",
          .entrypoint_listen = "127.0.0.1:9000",
          .kv_blocks = 10,
          .max_sequences = 20,
          .step_rows = 30,
          .storage = {.nodes = 3,
                      .targets_per_node = 4,
                      .target_bytes = 1 << 20,
                      .block_bytes = 113920,
                      .data_shards = 8,
                      .parity_shards = 3,
                      .spares = 2,
                      .fetch_bytes = 1 << 28,
                      .window_bytes = 1351680,
                      .window_pool_bytes = 1 << 27}};
}

RoutingView sample_view() {
  RoutingView view;
  view.version = 12;
  view.epoch = 3;
  view.model_id = "nano";
  view.artifact_digest_hex = "abcd";
  view.workers.push_back({"decode-0", "decode-0", "n0", "h0", WorkerRole::kDecode,
                          WorkerState::kReady, 4, "127.0.0.1:1"});
  view.workers.push_back(
      {"prefill-0", "prefill-0", "n1", "h1", WorkerRole::kPrefill, WorkerState::kStarting, 1, ""});
  view.workers.push_back({"prefill-1", "prefill-1", "n1", "h1", WorkerRole::kPrefill,
                          WorkerState::kReady, 5, "127.0.0.1:2", 3});
  view.prefill_cost = PublishedCost{7, {0.25, 1.5, 30000, 2e6, 4e4, 0.5}};
  view.bucket_edges = {256, 512, 1024};
  view.entrypoints = {{"entrypoint-0", 3, "127.0.0.1:5"}, {"entrypoint-1", 2, "127.0.0.1:6"}};
  return view;
}

EntrypointReport sample_entrypoint_report() {
  return {.incarnation = 4,
          .sequence = 9,
          .demand_ns = {1000, 0, 5, kDemandModulusNs - 1},
          .costs = {{"prefill-0", 2, {0, 0, 1e5, 0}},
                    {"prefill-1", 3, {0.25, 1.5, 30000, 2e6, 4e4, 0.5}}}};
}

StorageTargetReport sample_target() {
  return {.target_id = "storage-0.3",
          .failure = "read-only",
          .slots = 100,
          .used_slots = 40,
          .published = 30,
          .leased = 2,
          .rebuild_left = 5,
          .rebuilt_epoch = 7,
          .scrub_request = 9,
          .scrub_checked = 20,
          .scrub_total = 30,
          .scrub_bad = 1};
}

StorageReport sample_storage_report() {
  return {.protocol_version = 1,
          .cluster_id = "c1",
          .address = "127.0.0.1:5",
          .map_epoch = 8,
          .evict_request = 3,
          .targets = {sample_target()}};
}

StorageStatus sample_storage_status() {
  StorageStatus status = {.cluster_id = "c1",
                          .map_epoch = 8,
                          .data_shards = 10,
                          .parity_shards = 2,
                          .block_bytes = 113920,
                          .groups = 1,
                          .scrub_request = 9,
                          .evict_request = 3,
                          .nodes = {}};
  StorageNodeInfo node = {.node_id = "storage-0",
                          .address = "127.0.0.1:5",
                          .is_alive = true,
                          .report_age = std::chrono::milliseconds(12),
                          .map_epoch = 4,
                          .evict_request = 9,
                          .targets = {}};
  node.targets.push_back({sample_target(), 0, 3, "rebuilding"});
  status.nodes.push_back(std::move(node));
  return status;
}

/// Every message in JSON form, with a parser that gives back its JSON form.
struct Codec {
  std::string name;
  std::string json;
  std::function<absl::StatusOr<std::string>(std::string_view)> reserialise;
};

template <typename T>
Codec codec(std::string name, std::string json, absl::StatusOr<T> (*parse)(std::string_view)) {
  return {std::move(name), std::move(json),
          [parse](std::string_view text) -> absl::StatusOr<std::string> {
            absl::StatusOr<T> value = parse(text);
            if (!value.ok()) return value.status();
            return to_json(*value);
          }};
}

std::vector<Codec> codecs() {
  const NodeJoin join = {.protocol_version = 1,
                         .node_id = "n0",
                         .host_id = "h0",
                         .session_id = "1-2",
                         .address = "127.0.0.1:5",
                         .epoch = 4};
  const NodeJoinReply join_reply = {.epoch = 4,
                                    .heartbeat_interval = std::chrono::milliseconds(500),
                                    .node_timeout = std::chrono::milliseconds(3000)};
  const NodeInfo node = {.node_id = "n0",
                         .host_id = "h0",
                         .address = "127.0.0.1:5",
                         .is_alive = true,
                         .heartbeat_age = std::chrono::milliseconds(12),
                         .processes = {sample_report()}};
  const AgentState agent = {.node_id = "n0",
                            .host_id = "h0",
                            .epoch = 4,
                            .is_connected = true,
                            .processes = {sample_report()}};
  InstanceInfo instance;
  instance.instance_id = "decode-3";
  instance.role = ProcessRole::kDecode;
  instance.is_wanted = false;
  instance.workers.push_back(
      {"decode-3", "n0", "ready", 7, 4242, "127.0.0.1:1", "127.0.0.1:2", 2, "signal 9 (Killed)"});
  InstanceInfo prefill = instance;
  prefill.instance_id = "prefill-0";
  prefill.role = ProcessRole::kPrefill;
  prefill.bucket = 2;
  const ReadyFile ready = {.pid = 1,
                           .address = "127.0.0.1:1",
                           .metrics_address = "127.0.0.1:2",
                           .model_id = "nano",
                           .artifact_digest_hex = "ab",
                           .directory_address = "127.0.0.1:3"};
  const EventList events = {.oldest_id = 3,
                            .events = {{3, 1700000000000, "node_joined", "n0", "agent at x"}}};
  return {
      codec("join", to_json(join), &parse_node_join),
      codec("join reply", to_json(join_reply), &parse_node_join_reply),
      codec("heartbeat", to_json(sample_heartbeat()), &parse_heartbeat),
      codec("heartbeat reply", to_json(sample_reply()), &parse_heartbeat_reply),
      codec("nodes", to_json(std::vector<NodeInfo>{node}), &parse_nodes),
      codec("agent state", to_json(agent), &parse_agent_state),
      codec("desired", to_json(sample_desired()), &parse_desired_state),
      codec("entrypoint report", to_json(sample_entrypoint_report()), &parse_entrypoint_report),
      codec("instances", to_json(std::vector<InstanceInfo>{instance, prefill}), &parse_instances),
      codec("events", to_json(events), &parse_event_list),
      codec("storage report", to_json(sample_storage_report()), &parse_storage_report),
      codec("storage report reply",
            to_json(StorageReportReply{8, std::chrono::milliseconds(500), 9, 3, 0.25}),
            &parse_storage_report_reply),
      codec("storage status", to_json(sample_storage_status()), &parse_storage_status),
      codec("storage replace", to_json(StorageReplace{"a", "b"}), &parse_storage_replace),
      codec("storage wish", to_json(StorageWish{77}), &parse_storage_wish),
      codec("storage evict", to_json(StorageEvict{0.5}), &parse_storage_evict),
      codec("ready file", to_json(ready), &parse_ready_file),
      codec("view", to_json(sample_view()), &parse_routing_view)};
}

TEST(AdminCodecs, EveryMessageSurvivesTheWayThere) {
  for (const Codec& message : codecs()) {
    absl::StatusOr<std::string> again = message.reserialise(message.json);
    ASSERT_TRUE(again.ok()) << message.name << ": " << again.status();
    EXPECT_EQ(*again, message.json) << message.name;
  }
}

TEST(AdminCodecs, ParsedValuesEqualTheWrittenOnes) {
  absl::StatusOr<Heartbeat> heartbeat = parse_heartbeat(to_json(sample_heartbeat()));
  ASSERT_TRUE(heartbeat.ok());
  ASSERT_EQ(heartbeat->processes.size(), 1u);
  EXPECT_EQ(heartbeat->processes[0], sample_report());
  absl::StatusOr<HeartbeatReply> reply = parse_heartbeat_reply(to_json(sample_reply()));
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->assignment, sample_reply().assignment);
  EXPECT_EQ(*parse_desired_state(to_json(sample_desired())), sample_desired());
  EXPECT_EQ(*parse_entrypoint_report(to_json(sample_entrypoint_report())),
            sample_entrypoint_report());
  const absl::StatusOr<RoutingView> view = parse_routing_view(to_json(sample_view()));
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(view->workers[1].bucket, kNoBucket);
  EXPECT_EQ(view->workers[2].bucket, 3);
  EXPECT_EQ(view->prefill_cost, sample_view().prefill_cost);
  EXPECT_EQ(view->bucket_edges, sample_view().bucket_edges);
}

TEST(AdminCodecs, AViewOfAnEarlierControllerHasNeitherBucketsNorCosts) {
  Json old = *parse_json(to_json(sample_view()));
  EXPECT_FALSE(old["workers"][1].contains("bucket")) << "there is none to show";
  old["workers"][2].erase("bucket");
  old.erase("prefill_cost");
  old.erase("bucket_edges");
  const absl::StatusOr<RoutingView> view = parse_routing_view(dump_json(old));
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(view->workers[2].bucket, kNoBucket);
  EXPECT_EQ(view->prefill_cost, std::nullopt);
  EXPECT_TRUE(view->bucket_edges.empty());
}

TEST(AdminCodecs, ACostOfAnEarlierControllerHasNoTail) {
  Json old = *parse_json(to_json(sample_view()));
  old["prefill_cost"]["cost"].erase("tail_ns");
  old["prefill_cost"]["cost"].erase("tail_cross_ns");
  const absl::StatusOr<RoutingView> view = parse_routing_view(dump_json(old));
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(view->prefill_cost, (PublishedCost{7, {0.25, 1.5, 30000, 2e6}}));
}

TEST(AdminCodecs, BucketsAndCostsRefuseWhatCannotBe) {
  const auto view_error = [](const char* pointer, const Json& value) {
    Json bad = *parse_json(to_json(sample_view()));
    bad[Json::json_pointer(pointer)] = value;
    return std::string(message_of(parse_routing_view(dump_json(bad)).status()));
  };
  EXPECT_EQ(view_error("/workers/2/bucket", -1), "\"workers[2].bucket\" must be between 0 and 15");
  EXPECT_EQ(view_error("/workers/2/bucket", 16), "\"workers[2].bucket\" must be between 0 and 15");
  EXPECT_EQ(view_error("/workers/0/bucket", 1),
            "\"workers[0].bucket\": only prefill workers have one");
  EXPECT_EQ(view_error("/prefill_cost/cost/cross_ns", -0.5),
            "\"prefill_cost.cost.cross_ns\": must not be negative");
  EXPECT_EQ(view_error("/prefill_cost/cost/tail_ns", "x"),
            "\"prefill_cost.cost.tail_ns\" must be a finite number");
  const std::string edges_rule = "\"bucket_edges\": must ascend from 1 to 1099511627776";
  EXPECT_EQ(view_error("/bucket_edges", {0, 1, 2}), edges_rule);
  EXPECT_EQ(view_error("/bucket_edges", {5, 6, 6}), edges_rule);
  EXPECT_EQ(view_error("/bucket_edges", {5, 6, kMaxBucketEdge + 1}), edges_rule);
  EXPECT_EQ(view_error("/bucket_edges", {5, -6}),
            "\"bucket_edges[1]\" must be an integer between 0 and 2^53");
  EXPECT_EQ(view_error("/bucket_edges", std::vector<int>(16, 1)),
            "\"bucket_edges\" must be an array of at most 15 items");
  const auto report_error = [](const char* pointer, const Json& value) {
    Json bad = *parse_json(to_json(sample_entrypoint_report()));
    bad[Json::json_pointer(pointer)] = value;
    return std::string(message_of(parse_entrypoint_report(dump_json(bad)).status()));
  };
  EXPECT_EQ(report_error("/costs/0/cost/linear_ns", 0),
            "\"costs[0].cost.fixed_ns\": must not be 0 when all others are");
  EXPECT_EQ(report_error("/costs/1/cost/linear_ns", "7"),
            "\"costs[1].cost.linear_ns\" must be a finite number");
  EXPECT_EQ(report_error("/costs/1/worker_id", "../x").substr(0, 20), "\"costs[1].worker_id\"");
  EXPECT_EQ(report_error("/sequence", 0), "\"sequence\": begins at 1");
  EXPECT_EQ(report_error("/demand_ns/2", -1),
            "\"demand_ns[2]\" must be an integer between 0 and 2^53");
  EXPECT_EQ(report_error("/demand_ns", std::vector<int>(17, 1)),
            "\"demand_ns\" must be an array of at most 16 items");
  // Numbers that are too large are no infinity.
  std::string text = to_json(sample_entrypoint_report());
  text.replace(text.find("1.5"), 3, "1e400");
  EXPECT_FALSE(parse_entrypoint_report(text).ok());
}

TEST(AdminCodecs, DemandAboveTheLargestExactNumberIsWrittenModulo) {
  EntrypointReport report = sample_entrypoint_report();
  report.demand_ns = {kDemandModulusNs, kDemandModulusNs + 3, ~std::uint64_t{0}};
  const absl::StatusOr<EntrypointReport> parsed = parse_entrypoint_report(to_json(report));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->demand_ns, (std::vector<std::uint64_t>{0, 3, kDemandModulusNs - 1}));
}

TEST(AdminCodecs, AnAbsentAssignmentIsNotAnEmptyOne) {
  HeartbeatReply reply = sample_reply();
  reply.assignment.reset();
  EXPECT_FALSE(parse_heartbeat_reply(to_json(reply))->assignment.has_value());
  reply.assignment.emplace();
  EXPECT_TRUE(parse_heartbeat_reply(to_json(reply))->assignment.has_value());
}

/// All members of all objects inside a value, as paths that Json::contains understands.
void collect_members(const Json& value, const Json::json_pointer& at,
                     std::vector<Json::json_pointer>& out) {
  if (value.is_object()) {
    for (const auto& [key, member] : value.items()) {
      out.push_back(at / key);
      collect_members(member, at / key, out);
    }
  } else if (value.is_array()) {
    for (std::size_t index = 0; index < value.size(); ++index) {
      collect_members(value[index], at / index, out);
    }
  }
}

TEST(AdminCodecs, AMemberOfAnotherTypeIsRefusedByName) {
  for (const Codec& message : codecs()) {
    const Json good = *parse_json(message.json);
    std::vector<Json::json_pointer> members;
    collect_members(good, Json::json_pointer(), members);
    ASSERT_FALSE(members.empty());
    for (const Json::json_pointer& member : members) {
      Json bad = good;
      // No member of any message is an array of numbers that are not whole.
      bad[member] = Json::array({1.5});
      const absl::Status status = message.reserialise(dump_json(bad)).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument)
          << message.name << " " << member.to_string();
      EXPECT_NE(std::string(message_of(status)).find(member.back()), std::string::npos)
          << message.name << ": " << status;
    }
  }
}

TEST(AdminCodecs, AnUnknownMemberIsRefusedByName) {
  for (const Codec& message : codecs()) {
    Json bad = *parse_json(message.json);
    bad["surprise"] = 1;
    const absl::Status status = message.reserialise(dump_json(bad)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message.name;
    EXPECT_NE(std::string(message_of(status)).find("surprise"), std::string::npos) << status;
  }
}

TEST(AdminCodecs, NestedErrorsSayWhere) {
  Json bad = *parse_json(to_json(sample_heartbeat()));
  bad["processes"][0]["state"] = "sleeping";
  EXPECT_EQ(message_of(parse_heartbeat(dump_json(bad)).status()),
            "\"processes[0].state\": unknown process state \"sleeping\"; one of: starting, ready, "
            "draining, backoff, failing");
}

TEST(AdminCodecs, SeveralEntrypointsListenEachAtItsOwnNode) {
  DesiredState desired = sample_desired();
  desired.entrypoint = 2;
  EXPECT_EQ(message_of(parse_desired_state(to_json(desired)).status()),
            "\"entrypoint_listen\": must be \":port\" with more than one entrypoint");
  desired.entrypoint_listen = ":8000";
  const absl::StatusOr<DesiredState> parsed = parse_desired_state(to_json(desired));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, desired);
}

TEST(AdminCodecs, DesiredStateRefusesWhatCannotBe) {
  const std::pair<const char*, Json> cases[] = {{"prefill", -1},
                                                {"decode", kMaxWorkersPerRole + 1},
                                                {"entrypoint", kMaxWorkersPerRole + 1},
                                                {"model_dir", ""},
                                                {"model_dir", "relative/path"},
                                                {"model_id", ""},
                                                {"kv_blocks", -1},
                                                {"kv_blocks", 1.5},
                                                {"max_sequences", "8"},
                                                {"step_rows", true},
                                                {"prefill", nullptr}};
  for (const auto& [key, value] : cases) {
    Json bad = *parse_json(to_json(sample_desired()));
    bad[key] = value;
    const absl::Status status = parse_desired_state(dump_json(bad)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << key;
    EXPECT_NE(std::string(message_of(status)).find(key), std::string::npos) << status;
  }
  for (const char* key : {"prefill", "decode", "entrypoint", "model_dir", "model_id"}) {
    Json bad = *parse_json(to_json(sample_desired()));
    bad.erase(key);
    const absl::Status status = parse_desired_state(dump_json(bad)).status();
    EXPECT_NE(std::string(message_of(status)).find(key), std::string::npos) << status;
  }
}

TEST(AdminCodecs, NumbersThatAreNotExactAreRefused) {
  for (const char* number : {"-1", "1.0", "9007199254740993", "18446744073709551616", "1e3"}) {
    const std::string text =
        str_cat(R"({"epoch":)", number, R"(,"heartbeat_interval_ms":1,"node_timeout_ms":1})");
    EXPECT_FALSE(parse_node_join_reply(text).ok()) << number;
  }
  EXPECT_TRUE(parse_node_join_reply(
                  R"({"epoch":9007199254740992,"heartbeat_interval_ms":1,"node_timeout_ms":1})")
                  .ok());
}

TEST(AdminCodecs, IdsThatCouldBePathsAreRefused) {
  for (const char* id : {"", "..", "../x", "a/b", "-x", ".x", "a b", "\xc3\xa9", "a\n"}) {
    EXPECT_FALSE(is_plain_id(id)) << id;
    Json join = *parse_json(R"({"protocol_version":1,"node_id":"n","host_id":"h",)"
                            R"("session_id":"s","address":"a:1","epoch":0})");
    join["node_id"] = id;
    EXPECT_FALSE(parse_node_join(dump_json(join)).ok()) << id;
  }
  EXPECT_FALSE(is_plain_id(std::string(65, 'a')));
  EXPECT_TRUE(is_plain_id(std::string(64, 'a')));
  EXPECT_TRUE(is_plain_id("node-7.rack_2"));
}

TEST(AdminCodecs, AViewOutOfOrderIsRefused) {
  RoutingView view = sample_view();
  std::swap(view.workers[0], view.workers[1]);
  EXPECT_FALSE(parse_routing_view(to_json(view)).ok());
  view.workers[0] = view.workers[1];
  EXPECT_FALSE(parse_routing_view(to_json(view)).ok());
  view = sample_view();
  std::swap(view.entrypoints[0], view.entrypoints[1]);
  EXPECT_FALSE(parse_routing_view(to_json(view)).ok());
}

TEST(AdminCodecs, StorageRefusesWhatCannotBe) {
  const auto error_of = [](std::string_view member, const Json& value) {
    Json bad = *parse_json(to_json(sample_desired()));
    bad["storage"][std::string(member)] = value;
    return std::string(parse_desired_state(dump_json(bad)).status().message());
  };
  EXPECT_NE(error_of("nodes", -1).find("\"storage.nodes\""), std::string::npos);
  EXPECT_NE(error_of("parity_shards", 31).find("\"storage.parity_shards\""), std::string::npos);
  EXPECT_NE(error_of("block_bytes", 0).find("block_bytes above 0"), std::string::npos);
  EXPECT_NE(error_of("disks", 1).find("\"storage.disks\" is not known"), std::string::npos);
  EXPECT_FALSE(parse_storage_evict("{\"to_fraction\": 1.5}").ok());
  EXPECT_FALSE(parse_storage_evict("{}").ok());
  StorageReport report = sample_storage_report();
  report.targets[0].target_id = "../x";
  EXPECT_FALSE(parse_storage_report(to_json(report)).ok());
}

TEST(AdminCodecs, NamesAndValuesAreInverse) {
  for (ProcessRole role : {ProcessRole::kPrefill, ProcessRole::kDecode, ProcessRole::kEntrypoint,
                           ProcessRole::kStorage, ProcessRole::kKvFetch}) {
    EXPECT_EQ(*parse_process_role(process_role_name(role)), role);
    EXPECT_EQ(is_engine(role), role == ProcessRole::kPrefill || role == ProcessRole::kDecode);
  }
  for (ProcessState state : {ProcessState::kStarting, ProcessState::kReady, ProcessState::kDraining,
                             ProcessState::kBackoff, ProcessState::kFailing}) {
    EXPECT_EQ(*parse_process_state(process_state_name(state)), state);
  }
  for (WorkerRole role : {WorkerRole::kPrefill, WorkerRole::kDecode}) {
    EXPECT_EQ(*parse_role(role_name(role)), role);
  }
  for (WorkerState state : {WorkerState::kStarting, WorkerState::kReady, WorkerState::kDraining}) {
    EXPECT_EQ(*parse_worker_state(worker_state_name(state)), state);
  }
  EXPECT_FALSE(parse_role("entrypoint").ok());
  EXPECT_FALSE(parse_worker_state("Ready").ok());
}

/// Damaged bytes are refused or parsed, never anything else; what is parsed is valid again.
TEST(AdminCodecs, DamagedBytesNeverCrash) {
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    for (const Codec& message : codecs()) {
      std::string text = message.json;
      const int damages = 1 + static_cast<int>(random() % 3);
      for (int damage = 0; damage < damages && !text.empty(); ++damage) {
        const std::size_t at = random() % text.size();
        switch (random() % 3) {
          case 0:
            text[at] = static_cast<char>(random());
            break;
          case 1:
            text.erase(at, 1 + random() % 5);
            break;
          default:
            text.insert(at, text.substr(random() % text.size(), random() % 20));
        }
      }
      absl::StatusOr<std::string> result = message.reserialise(text);
      if (result.ok()) {
        EXPECT_TRUE(message.reserialise(*result).ok()) << "seed " << seed << ": " << text;
      }
    }
  }
}

}  // namespace
}  // namespace millrace::api::admin
