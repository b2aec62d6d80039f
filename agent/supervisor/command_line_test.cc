#include "agent/supervisor/command_line.h"

#include <gtest/gtest.h>

namespace millrace::agent::supervisor {
namespace {

using api::admin::ProcessRole;
using api::admin::ProcessSpec;

const NodeSettings kNode = {.node_id = "n0",
                            .host_id = "h0",
                            .listen_host = "10.0.0.7",
                            .controller_url = "http://10.0.0.1:8080",
                            .bin_dir = "/opt/bin",
                            .log_level = "warn"};

std::string joined(const CommandLine& line) {
  std::string text = line.program;
  for (const std::string& argument : line.arguments) text += " " + argument;
  return text;
}

TEST(CommandLine, OfAWorkerWithEverySetting) {
  const ProcessSpec spec = {.worker_id = "decode-1",
                            .instance_id = "decode-1",
                            .role = ProcessRole::kDecode,
                            .model_dir = "/models/nano",
                            .model_id = "nano",
                            .engine = "rounding=off",
                            .listen = "",
                            .kv_blocks = 64,
                            .max_sequences = 8,
                            .step_rows = 256,
                            .targets = 0,
                            .target_bytes = 0,
                            .uses_kv_store = true,
                            .fetch_bytes = 0,
                            .window_bytes = 0,
                            .window_pool_bytes = 0};
  EXPECT_EQ(joined(command_line(spec, kNode,
                                {"/run/decode-1.ready", "/responses", "/storage", "/run/f.sock"})),
            "/opt/bin/millrace-worker --role decode --model /models/nano --model-id nano "
            "--worker-id decode-1 --host-id h0 --listen 10.0.0.7:0 --metrics 10.0.0.7:0 "
            "--engine rounding=off --kv-blocks 64 --max-sequences 8 --step-rows 256 "
            "--kv-fetch unix:/run/f.sock "
            "--ready-file /run/decode-1.ready --log-level warn");
}

TEST(CommandLine, OfAWorkerLeavesItsDefaultsToIt) {
  ProcessSpec spec;
  spec.worker_id = "prefill-0";
  spec.role = ProcessRole::kPrefill;
  spec.model_dir = "/m";
  spec.model_id = "m";
  EXPECT_EQ(
      joined(command_line(spec, kNode, {"/r", "/responses", "/storage", "/run/f.sock"})),
      "/opt/bin/millrace-worker --role prefill --model /m --model-id m --worker-id prefill-0 "
      "--host-id h0 --listen 10.0.0.7:0 --metrics 10.0.0.7:0 --ready-file /r --log-level warn");
}

TEST(CommandLine, OfAWorkerTakesItsShareOfTheNodesCores) {
  NodeSettings node = kNode;
  node.worker_threads = 12;
  ProcessSpec spec;
  spec.role = ProcessRole::kDecode;
  EXPECT_NE(joined(command_line(spec, node, {"/r", "/responses", "/storage", "/run/f.sock"}))
                .find(" --threads 12 "),
            std::string::npos);
}

TEST(CommandLine, OfAnEntrypoint) {
  ProcessSpec spec;
  spec.worker_id = "entrypoint-0";
  spec.role = ProcessRole::kEntrypoint;
  spec.model_dir = "/m";
  spec.model_id = "m";
  spec.listen = "127.0.0.1:8000";
  EXPECT_EQ(joined(command_line(spec, kNode, {"/r", "/responses", "/storage", "/run/f.sock"})),
            "/opt/bin/millrace-entrypoint --listen 127.0.0.1:8000 --controller "
            "http://10.0.0.1:8080 --model /m --model-id m --entrypoint-id entrypoint-0 "
            "--response-store /responses --directory-listen 10.0.0.7:0 "
            "--ready-file /r --log-level warn");
}

TEST(CommandLine, AnEntrypointWithoutAHostListensAtItsNode) {
  ProcessSpec spec;
  spec.role = ProcessRole::kEntrypoint;
  spec.listen = ":8000";
  const std::string line =
      joined(command_line(spec, kNode, {"/r", "/responses", "/storage", "/run/f.sock"}));
  EXPECT_NE(line.find("--listen 10.0.0.7:8000 "), std::string::npos) << line;
}

TEST(CommandLine, OfAnEntrypointNamesTheClustersSecretAndKeys) {
  NodeSettings node = kNode;
  node.cluster_secret = "/data/cluster.secret";
  node.api_keys = "/etc/keys.toml";
  ProcessSpec spec;
  spec.role = ProcessRole::kEntrypoint;
  const std::string line =
      joined(command_line(spec, node, {"/r", "/responses", "/storage", "/run/f.sock"}));
  EXPECT_NE(line.find(" --cluster-secret /data/cluster.secret --api-keys /etc/keys.toml "),
            std::string::npos)
      << line;
}

TEST(CommandLine, OfAFetcher) {
  ProcessSpec spec;
  spec.worker_id = "kvfetch-0";
  spec.role = ProcessRole::kKvFetch;
  const ProcessFiles files = {"/r", "/responses", "/storage", "/run/f.sock"};
  EXPECT_EQ(joined(command_line(spec, kNode, files)),
            "/opt/bin/millrace-kvfetch --host-id h0 --listen unix:/run/f.sock --controller "
            "http://10.0.0.1:8080 --metrics 10.0.0.7:0 --ready-file /r --log-level warn");
  spec.fetch_bytes = std::int64_t{256} << 20;
  const std::string line = joined(command_line(spec, kNode, files));
  EXPECT_NE(line.find(" --arena-mib 256 --write-arena-mib 32 "), std::string::npos) << line;
  spec.window_bytes = 65536;
  spec.window_pool_bytes = 1 << 24;
  const std::string with_windows = joined(command_line(spec, kNode, files));
  EXPECT_NE(with_windows.find(" --window-bytes 65536 --window-pool-bytes 16777216 "
                              "--window-listen 10.0.0.7:0 "),
            std::string::npos)
      << with_windows;
}

TEST(CommandLine, TheFetchersSocketMustFitASocketsName) {
  ProcessSpec spec;
  spec.role = ProcessRole::kKvFetch;
  ProcessFiles files;
  files.fetch_socket = std::string(107, 's');
  EXPECT_TRUE(check_files(spec, files).ok());
  files.fetch_socket += 's';
  const absl::Status status = check_files(spec, files);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(status.message()).find("--data-dir"), std::string::npos);
  spec.role = ProcessRole::kDecode;
  EXPECT_TRUE(check_files(spec, files).ok()) << "an engine without the store needs no fetcher";
  spec.uses_kv_store = true;
  EXPECT_FALSE(check_files(spec, files).ok());
}

TEST(CommandLine, OfAStorageNode) {
  ProcessSpec spec;
  spec.worker_id = "storage-0";
  spec.role = ProcessRole::kStorage;
  spec.targets = 12;
  spec.target_bytes = 1 << 20;
  EXPECT_EQ(joined(command_line(spec, kNode, {"/r", "/responses", "/storage", "/run/f.sock"})),
            "/opt/bin/millrace-storaged --node-id storage-0 --controller http://10.0.0.1:8080 "
            "--data-dir /storage --targets 12 --target-bytes 1048576 --listen 10.0.0.7:0 "
            "--metrics 10.0.0.7:0 --ready-file /r --log-level warn");
}

}  // namespace
}  // namespace millrace::agent::supervisor
