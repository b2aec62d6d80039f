#include "deploy/cli/arguments.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "common/str_cat.h"
#include "deploy/cli/recipe_arguments.h"
#include "deploy/cli/storage_arguments.h"

namespace millrace::deploy::cli {
namespace {

constexpr int kUsageError = 2;
constexpr const char* kVersion = "millrace 0.1.0";

/// Everything that flags can set; one member per subcommand.
struct AllOptions {
  UpOptions up;
  DownOptions down;
  StatusOptions status;
  ChatOptions chat;
  CompleteOptions complete;
  BenchOptions bench;
  FitOptions fit;
  EvalOptions eval;
  RecipeOptions recipe;
  StorageOptions storage;
};

void add_data_dir(CLI::App& command, std::string& data_dir) {
  command.add_option("--data-dir", data_dir, "Folder of the cluster's state and logs")
      ->capture_default_str();
}

void add_server(CLI::App& command, ServerOptions& server) {
  command.add_option("--url", server.url,
                     "Entrypoint, as host:port or URL (default: the cluster of --data-dir)");
  add_data_dir(command, server.data_dir);
}

void add_json(CLI::App& command, bool& is_json) {
  command.add_flag("--json", is_json, "Print one JSON object instead of text");
}

CLI::App* add_up(CLI::App& app, UpOptions& up) {
  CLI::App* command = app.add_subcommand("up", "Start a cluster on this machine");
  command->add_option("--model", up.model_dir, "Folder of the model (default: the nano model)");
  command->add_option("--model-id", up.model_id,
                      "Name clients call it by (default: the folder's name)");
  command->add_option("--prefill", up.prefill, "Prefill workers")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command->add_option("--decode", up.decode, "Decode workers")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command->add_option("--engine", up.engine,
                      "Engine switches for comparisons: rounding=off,decoder_replay=off");
  command
      ->add_option("--entrypoint", up.entrypoint,
                   "Where clients connect, host:port; port 0 takes a free one")
      ->capture_default_str();
  command
      ->add_option("--controller", up.controller,
                   "Where the admin API listens, host:port; port 0 takes a free one")
      ->capture_default_str();
  add_data_dir(*command, up.data_dir);
  command->add_option("--kv-blocks", up.kv_blocks, "KV blocks per worker (0: its own default)")
      ->check(CLI::NonNegativeNumber);
  command
      ->add_option("--max-sequences", up.max_sequences,
                   "Sequences per worker at a time (0: its own default)")
      ->check(CLI::NonNegativeNumber);
  command
      ->add_option("--kv-bytes", up.kv_bytes,
                   "Room on disk for KV of prompts that were seen, for example 2GiB; 0 stores none")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  command->add_option("--wait-s", up.wait_s, "Give up when it is not ready after so many seconds")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_flag("--detach", up.is_detached, "Return when it is ready; stop it with down");
  add_json(*command, up.is_json);
  command->footer(
      "Examples:\n"
      "  millrace up\n"
      "  millrace up --detach --prefill 2 --decode 2\n"
      "  millrace up --detach --json --entrypoint 127.0.0.1:0 --controller 127.0.0.1:0\n"
      "Without --detach it runs until Ctrl-C.");
  return command;
}

CLI::App* add_down(CLI::App& app, DownOptions& down) {
  CLI::App* command = app.add_subcommand("down", "Stop the cluster that up started");
  add_data_dir(*command, down.data_dir);
  command->add_option("--wait-s", down.wait_s, "Kill what has not stopped after so many seconds")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->footer("Example:\n  millrace down");
  return command;
}

CLI::App* add_status(CLI::App& app, StatusOptions& status) {
  CLI::App* command = app.add_subcommand("status", "Show nodes and workers");
  command->add_option("--controller", status.controller,
                      "Controller, host:port (default: the cluster of --data-dir)");
  add_data_dir(*command, status.data_dir);
  add_json(*command, status.is_json);
  command->footer("Examples:\n  millrace status\n  millrace status --json");
  return command;
}

template <typename Options>
void add_sampling(CLI::App& command, Options& options) {
  command.add_option("--temperature", options.temperature, "0 always takes the likeliest token")
      ->check(CLI::Range(0.0, 2.0));
  command.add_option("--max-tokens", options.max_tokens, "Longest answer, in tokens")
      ->check(CLI::PositiveNumber);
  command.add_option("--seed", options.seed, "Equal seeds give equal answers");
}

CLI::App* add_chat(CLI::App& app, ChatOptions& chat) {
  CLI::App* command = app.add_subcommand("chat", "Talk to the model");
  add_server(*command, chat.server);
  command->add_option("--once", chat.once, "Ask this, print the answer and return");
  command->add_option("--system", chat.system, "System message");
  auto* thinking = command->add_flag_callback(
      "--thinking", [&chat] { chat.is_thinking = true; }, "Let it think before it answers");
  command
      ->add_flag_callback(
          "--no-thinking", [&chat] { chat.is_thinking = false; }, "Answer at once")
      ->excludes(thinking);
  add_sampling(*command, chat);
  command->footer(
      "Examples:\n"
      "  millrace chat\n"
      "  millrace chat --once \"Who are you?\" --temperature 0\n"
      "In a conversation, /new starts over and /quit ends. Reasoning is shown, dimmed, on a\n"
      "terminal only.");
  return command;
}

CLI::App* add_complete(CLI::App& app, CompleteOptions& complete) {
  CLI::App* command = app.add_subcommand("complete", "Continue a raw prompt");
  add_server(*command, complete.server);
  command->add_option("prompt", complete.prompt, "Text, or token ids with --ids")->required();
  command->add_flag("--ids", complete.are_ids, "Prompt and answer are token ids");
  add_sampling(*command, complete);
  command->footer(
      "Examples:\n"
      "  millrace complete \"Once upon a time\" --max-tokens 40\n"
      "  millrace complete --ids \"0 17 4\"");
  return command;
}

CLI::App* add_bench_fit(CLI::App& group, FitOptions& fit) {
  CLI::App* command =
      group.add_subcommand("fit", "Measure an engine's steps and fit the cost model to them");
  command->add_option("--model", fit.model_dir, "Folder of the checkpoint (default: nano)");
  command->add_option("--model-id", fit.model_id, "Name under which the model is served")
      ->capture_default_str();
  command->add_option("--out", fit.out, "The cost file to write")->capture_default_str();
  command->add_option("--plot", fit.plot, "Draw predicted against measured steps (SVG)");
  command->add_option("--seconds", fit.seconds, "How long to measure")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--threads", fit.threads, "Of the engine; 0: one for each core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->add_option("--max-context", fit.max_context, "Tokens of the longest prompt")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--step-rows", fit.step_rows, "Tokens of one engine step")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--max-batch", fit.max_batch, "Sequences of one decode step")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--seed", fit.seed, "Of lengths and tokens")->capture_default_str();
  command->footer(
      "Example:\n"
      "  millrace bench fit --seconds 120 --out cost.json --plot cost.svg\n"
      "Needs no running cluster, and an otherwise idle machine: it measures by the wall clock.");
  return command;
}

CLI::App* add_bench_serve(CLI::App& group, BenchOptions& bench) {
  CLI::App* command = group.add_subcommand("serve", "Send a load and measure latency");
  add_server(*command, bench.server);
  command->add_option("--model", bench.model_dir,
                      "Folder of the served model, for its tokenizer (default: the cluster's)");
  auto* trace = command->add_option(
      "--trace", bench.trace, "Lengths from a trace: Azure 2023 .csv or Mooncake .jsonl, also .gz");
  command->add_option("--requests", bench.requests, "Requests (default: 64, or the whole trace)")
      ->check(CLI::PositiveNumber);
  command->add_option("--concurrency", bench.concurrency, "Requests at a time")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--input-tokens", bench.input_tokens, "Prompt length without a trace")
      ->check(CLI::PositiveNumber)
      ->excludes(trace)
      ->capture_default_str();
  command->add_option("--output-tokens", bench.output_tokens, "Answer length without a trace")
      ->check(CLI::PositiveNumber)
      ->excludes(trace)
      ->capture_default_str();
  command->add_flag("--arrivals", bench.keep_arrivals, "Send at the trace's times, not at once")
      ->needs(trace);
  command->add_option("--seed", bench.seed, "Of the made-up prompts")->capture_default_str();
  command->add_option("--timeout-s", bench.timeout_s, "Longest time for one request")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  add_json(*command, bench.is_json);
  command->footer(
      "Examples:\n"
      "  millrace bench serve --requests 100 --concurrency 16 --input-tokens 512\n"
      "  millrace bench serve --trace azure_llm_2023_conv.csv.gz --requests 500 --concurrency 32\n"
      "Prompts are made-up text, cut to the exact length; answers run to the exact length.");
  return command;
}

CLI::App* add_eval(CLI::App& app, EvalOptions& eval) {
  CLI::App* command = app.add_subcommand("eval", "Run the model's held-out tasks");
  add_server(*command, eval.server);
  command->add_option("--model", eval.model_dir,
                      "Folder of the served model, for its tasks (default: the cluster's)");
  command->add_option("--tasks", eval.tasks, "Tasks (default: eval/tasks.jsonl of the model)");
  command->add_option("--concurrency", eval.concurrency, "Requests at a time")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  command->add_option("--limit", eval.limit, "Only the first so many tasks (0: all)")
      ->check(CLI::NonNegativeNumber);
  add_json(*command, eval.is_json);
  command->footer("Examples:\n  millrace eval\n  millrace eval --json --limit 100");
  return command;
}

/// A path that means the same in another working folder; empty stays empty.
void make_absolute(std::string& path, const Surroundings& surroundings) {
  if (path.empty()) return;
  const std::filesystem::path joined = std::filesystem::path(surroundings.working_dir) / path;
  path = joined.lexically_normal().string();
  if (path.size() > 1 && path.ends_with('/')) path.pop_back();
}

}  // namespace

std::string default_data_dir(const Surroundings& surroundings) {
  if (!surroundings.data_dir_env.empty()) return surroundings.data_dir_env;
  if (!surroundings.state_home_env.empty()) return surroundings.state_home_env + "/millrace";
  if (!surroundings.home_env.empty()) return surroundings.home_env + "/.local/state/millrace";
  return "/var/tmp/millrace";
}

std::string default_model_dir(const std::string& program_dir) {
  namespace fs = std::filesystem;
  const fs::path programs(program_dir);
  // build/<preset>/bin below the source tree, and bin beside share.
  for (const fs::path& candidate :
       {programs / "../../../deploy/models/nano", programs / "../share/millrace/models/nano"}) {
    std::error_code ignored;
    if (fs::is_directory(candidate, ignored)) return fs::canonical(candidate, ignored).string();
  }
  return {};
}

Parsed parse_arguments(int argc, const char* const* argv, const Surroundings& surroundings) {
  CLI::App app("Millrace serves DeepSeek-V4.1-Flash-class models.", "millrace");
  app.require_subcommand(1);
  app.set_version_flag("--version", kVersion);
  app.footer("\"millrace COMMAND --help\" explains a command.");

  AllOptions options;
  const std::string data_dir = default_data_dir(surroundings);
  for (std::string* dir : {&options.up.data_dir, &options.down.data_dir, &options.status.data_dir,
                           &options.chat.server.data_dir, &options.complete.server.data_dir,
                           &options.bench.server.data_dir, &options.eval.server.data_dir}) {
    *dir = data_dir;
  }
  for (std::string* dir : data_dirs_of(options.storage)) *dir = data_dir;
  const CLI::App* up = add_up(app, options.up);
  const CLI::App* down = add_down(app, options.down);
  const CLI::App* status = add_status(app, options.status);
  const CLI::App* chat = add_chat(app, options.chat);
  const CLI::App* complete = add_complete(app, options.complete);
  CLI::App* bench_group = app.add_subcommand("bench", "Measure a cluster, or an engine");
  bench_group->require_subcommand(1);
  const CLI::App* bench = add_bench_serve(*bench_group, options.bench);
  const CLI::App* fit = add_bench_fit(*bench_group, options.fit);
  const CLI::App* eval = add_eval(app, options.eval);
  const RecipeApps recipe = add_recipe(app, options.recipe);
  const StorageApps storage = add_storage(app, options.storage);

  app.add_subcommand("simulate", "Run a cluster in virtual time (millrace-simulate)");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return {.exit_status = app.exit(error) == 0 ? 0 : kUsageError};
  }

  options.up.program_dir = surroundings.program_dir;
  for (std::string* dir : {&options.up.model_dir, &options.fit.model_dir}) {
    if (dir->empty()) *dir = default_model_dir(surroundings.program_dir);
  }
  for (std::string* path :
       {&options.up.data_dir, &options.up.model_dir, &options.down.data_dir,
        &options.status.data_dir, &options.chat.server.data_dir, &options.complete.server.data_dir,
        &options.bench.server.data_dir, &options.bench.model_dir, &options.eval.server.data_dir,
        &options.eval.model_dir, &options.fit.model_dir}) {
    make_absolute(*path, surroundings);
  }
  for (std::string* path : data_dirs_of(options.storage)) make_absolute(*path, surroundings);
  if (up->parsed()) return {.command = options.up};
  if (down->parsed()) return {.command = options.down};
  if (status->parsed()) return {.command = options.status};
  if (chat->parsed()) return {.command = options.chat};
  if (complete->parsed()) return {.command = options.complete};
  if (bench->parsed()) return {.command = options.bench};
  if (fit->parsed()) return {.command = options.fit};
  if (eval->parsed()) return {.command = options.eval};
  if (storage.nodes->parsed()) return {.command = options.storage.nodes};
  if (storage.replace->parsed()) return {.command = options.storage.replace};
  if (storage.status->parsed()) return {.command = options.storage.status};
  if (storage.scrub->parsed()) return {.command = options.storage.scrub};
  if (storage.evict->parsed()) return {.command = options.storage.evict};
  if (storage.check->parsed()) return {.command = options.storage.check};
  if (storage.explain->parsed()) return {.command = options.storage.explain};
  if (storage.bench->parsed()) return {.command = options.storage.bench};
  complete_recipe(options.recipe, default_model_dir(surroundings.program_dir));
  if (recipe.render->parsed()) return {.command = options.recipe.render};
  if (recipe.parse->parsed()) return {.command = options.recipe.parse};
  if (recipe.encode->parsed()) return {.command = options.recipe.encode};
  return {.exit_status = kUsageError};
}

}  // namespace millrace::deploy::cli
