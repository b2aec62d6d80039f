#include "deploy/cli/storage_arguments.h"

#include <CLI/CLI.hpp>

namespace millrace::deploy::cli {
namespace {

void add_server(CLI::App& command, StorageServer& server) {
  command.add_option("--controller", server.controller,
                     "Controller, host:port (default: the cluster of --data-dir)");
  command.add_option("--data-dir", server.data_dir, "Folder of the cluster's state and logs")
      ->capture_default_str();
}

void add_json(CLI::App& command, bool& is_json) {
  command.add_flag("--json", is_json, "Print one JSON object instead of text");
}

void add_wait(CLI::App& command, int& wait_s) {
  command.add_option("--wait-s", wait_s, "Give up waiting after so many seconds")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
}

CLI::App* add_nodes(CLI::App& group, StorageNodesOptions& nodes) {
  CLI::App* command = group.add_subcommand("nodes", "Show storage nodes and their targets");
  add_server(*command, nodes.server);
  add_json(*command, nodes.is_json);
  command->footer("Examples:\n  millrace storage nodes\n  millrace storage nodes --json");
  return command;
}

CLI::App* add_replace(CLI::App& group, StorageReplaceOptions& replace) {
  CLI::App* command =
      group.add_subcommand("replace", "Let a spare take the place of a target, and rebuild it");
  add_server(*command, replace.server);
  command->add_option("target", replace.target, "The target that leaves its group")->required();
  command->add_option("--with", replace.spare, "The spare (default: the best placed one)");
  command->add_flag("--wait", replace.waits, "Return when the spare is rebuilt");
  add_wait(*command, replace.wait_s);
  command->footer(
      "Examples:\n"
      "  millrace storage replace storage-3-target-00\n"
      "  millrace storage replace storage-3-target-00 --with storage-12-target-00 --wait\n"
      "The replaced target becomes a spare. A replacement that would leave a group unreadable is\n"
      "refused.");
  return command;
}

CLI::App* add_status(CLI::App& group, KvStatusOptions& status) {
  CLI::App* command =
      group.add_subcommand("status", "Show how full the KV store is, and its state");
  add_server(*command, status.server);
  add_json(*command, status.is_json);
  command->footer("Example:\n  millrace kv status");
  return command;
}

CLI::App* add_scrub(CLI::App& group, KvScrubOptions& scrub) {
  CLI::App* command = group.add_subcommand("scrub", "Read and check every stored shard once");
  add_server(*command, scrub.server);
  add_wait(*command, scrub.wait_s);
  add_json(*command, scrub.is_json);
  command->footer(
      "Example:\n  millrace kv scrub\n"
      "Damaged shards are dropped and rebuilt from the others of their block.");
  return command;
}

CLI::App* add_evict(CLI::App& group, KvEvictOptions& evict) {
  CLI::App* command = group.add_subcommand("evict", "Evict blocks, those unused longest first");
  add_server(*command, evict.server);
  command->add_option("--to", evict.to_fraction, "Until at most this fraction of the slots is used")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  add_wait(*command, evict.wait_s);
  command->footer("Examples:\n  millrace kv evict\n  millrace kv evict --to 0.5");
  return command;
}

CLI::App* add_check(CLI::App& group, KvCheckOptions& check) {
  CLI::App* command = group.add_subcommand("check", "Say how much of a prompt is stored");
  add_server(*command, check.server);
  command
      ->add_option("file", check.file,
                   "A JSON list of token ids, or block keys of 64 digits, one a line; - for "
                   "standard input")
      ->required();
  command->add_option("--account", check.account, "The account that asked the prompt");
  command->add_option("--user-id", check.user_id, "The user_id of its requests");
  add_json(*command, check.is_json);
  command->footer(
      "Examples:\n"
      "  millrace kv check tokens.json\n"
      "  millrace kv check keys.txt --json\n"
      "Tokens need the cluster's secret and model, which are in --data-dir of the machine that "
      "runs\n"
      "millrace up. Nothing is read but metadata.");
  return command;
}

CLI::App* add_explain(CLI::App& group, KvExplainOptions& explain) {
  CLI::App* command = group.add_subcommand(
      "explain", "Say what an entrypoint would find stored of a chat request, and what that saves");
  command
      ->add_option("file", explain.file,
                   "A Chat Completions request, JSON; - for standard input. It is not run")
      ->required();
  command->add_option("--url", explain.url,
                      "Entrypoint, as host:port or URL (default: the cluster of --data-dir)");
  command->add_option("--data-dir", explain.data_dir, "Folder of the cluster's state and logs")
      ->capture_default_str();
  command->add_option("--api-key", explain.api_key,
                      "Key of the account that asks, where the entrypoint wants one");
  add_json(*command, explain.is_json);
  command->footer("Examples:\n  millrace kv explain request.json\n  millrace kv explain - --json");
  return command;
}

CLI::App* add_bench(CLI::App& group, KvBenchOptions& bench) {
  CLI::App* command =
      group.add_subcommand("bench", "Write blocks, read them back, verify and measure");
  add_server(*command, bench.server);
  command->add_option("--blocks", bench.blocks, "Blocks to write and read")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--concurrency", bench.concurrency, "Blocks at a time")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--seed", bench.seed, "Of the blocks; 0: a new one")->capture_default_str();
  command
      ->add_option("--read-s", bench.read_seconds,
                   "Read blocks at random for so many seconds (0: each once)")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command
      ->add_option(
          "--spare-shards", bench.spare_shards,
          "Shards beyond k that a read asks for at once; the cluster's own reads ask for 1")
      ->check(CLI::Range(0, 8))
      ->capture_default_str();
  add_json(*command, bench.is_json);
  command->footer(
      "Examples:\n"
      "  millrace kv bench\n"
      "  millrace kv bench --blocks 5000 --concurrency 64 --json\n"
      "The blocks stay until they are evicted. Exit status 1 when a block came back wrong or "
      "could\n"
      "not be read.");
  return command;
}

}  // namespace

StorageApps add_storage(CLI::App& app, StorageOptions& options) {
  StorageApps apps;
  CLI::App* storage = app.add_subcommand("storage", "Storage nodes");
  storage->require_subcommand(1);
  apps.nodes = add_nodes(*storage, options.nodes);
  apps.replace = add_replace(*storage, options.replace);
  CLI::App* kv = app.add_subcommand("kv", "The store of KV blocks");
  kv->require_subcommand(1);
  apps.status = add_status(*kv, options.status);
  apps.check = add_check(*kv, options.check);
  apps.explain = add_explain(*kv, options.explain);
  apps.evict = add_evict(*kv, options.evict);
  apps.scrub = add_scrub(*kv, options.scrub);
  apps.bench = add_bench(*kv, options.bench);
  return apps;
}

std::vector<std::string*> data_dirs_of(StorageOptions& options) {
  return {&options.nodes.server.data_dir,  &options.replace.server.data_dir,
          &options.status.server.data_dir, &options.scrub.server.data_dir,
          &options.evict.server.data_dir,  &options.check.server.data_dir,
          &options.bench.server.data_dir,  &options.explain.data_dir};
}

}  // namespace millrace::deploy::cli
