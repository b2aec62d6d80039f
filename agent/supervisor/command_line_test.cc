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
                            .target_bytes = 0};
  EXPECT_EQ(joined(command_line(spec, kNode, {"/run/decode-1.ready", "/responses", "/storage"})),
            "/opt/bin/millrace-worker --role decode --model /models/nano --model-id nano "
            "--worker-id decode-1 --host-id h0 --listen 10.0.0.7:0 --metrics 10.0.0.7:0 "
            "--engine rounding=off --kv-blocks 64 --max-sequences 8 --step-rows 256 "
            "--ready-file /run/decode-1.ready --log-level warn");
}

TEST(CommandLine, OfAWorkerLeavesItsDefaultsToIt) {
  ProcessSpec spec;
  spec.worker_id = "prefill-0";
  spec.role = ProcessRole::kPrefill;
  spec.model_dir = "/m";
  spec.model_id = "m";
  EXPECT_EQ(
      joined(command_line(spec, kNode, {"/r", "/responses", "/storage"})),
      "/opt/bin/millrace-worker --role prefill --model /m --model-id m --worker-id prefill-0 "
      "--host-id h0 --listen 10.0.0.7:0 --metrics 10.0.0.7:0 --ready-file /r --log-level warn");
}

TEST(CommandLine, OfAWorkerTakesItsShareOfTheNodesCores) {
  NodeSettings node = kNode;
  node.worker_threads = 12;
  ProcessSpec spec;
  spec.role = ProcessRole::kDecode;
  EXPECT_NE(
      joined(command_line(spec, node, {"/r", "/responses", "/storage"})).find(" --threads 12 "),
      std::string::npos);
}

TEST(CommandLine, OfAnEntrypoint) {
  ProcessSpec spec;
  spec.worker_id = "entrypoint-0";
  spec.role = ProcessRole::kEntrypoint;
  spec.model_dir = "/m";
  spec.model_id = "m";
  spec.listen = "127.0.0.1:8000";
  EXPECT_EQ(joined(command_line(spec, kNode, {"/r", "/responses", "/storage"})),
            "/opt/bin/millrace-entrypoint --listen 127.0.0.1:8000 --controller "
            "http://10.0.0.1:8080 --model /m --model-id m --entrypoint-id entrypoint-0 "
            "--response-store /responses "
            "--ready-file /r --log-level warn");
}

TEST(CommandLine, OfAStorageNode) {
  ProcessSpec spec;
  spec.worker_id = "storage-0";
  spec.role = ProcessRole::kStorage;
  spec.targets = 12;
  spec.target_bytes = 1 << 20;
  EXPECT_EQ(joined(command_line(spec, kNode, {"/r", "/responses", "/storage"})),
            "/opt/bin/millrace-storaged --node-id storage-0 --controller http://10.0.0.1:8080 "
            "--data-dir /storage --targets 12 --target-bytes 1048576 --listen 10.0.0.7:0 "
            "--metrics 10.0.0.7:0 --ready-file /r --log-level warn");
}

}  // namespace
}  // namespace millrace::agent::supervisor
