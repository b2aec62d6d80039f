#include <poll.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <future>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "api/admin/id.h"
#include "api/admin/process.h"
#include "api/entrypoint/entrypoint.h"
#include "api/entrypoint/model_options.h"
#include "api/recipe/settings.h"
#include "api/tokenizer/tokenizer.h"
#include "common/annotate.h"
#include "common/crypto/secret_file.h"
#include "common/mapped_file.h"
#include "common/process/reload_signal.h"
#include "common/process/shutdown_signal.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "dataplane/model/config.h"

namespace millrace::api::entrypoint {
namespace {

/// The command line, as written.
struct Flags {
  EntrypointOptions options;
  std::string model_folder;
  std::string model_id;
  std::string ready_file;
  std::string log_level = "info";
  std::vector<std::string> aliases;
  std::map<std::string_view, std::string> settings;  // as far as given, by name
  int request_deadline_s = 300;
  int response_store_ttl_s = 30 * 24 * 3600;
  int drain_timeout_s = 60;
  std::string balance = "millrace";
  std::string cluster_secret;
  std::string api_keys;
  std::string directory_listen = "127.0.0.1:0";
  int check_timeout_ms = 50;
};

/// Where sources disagree on how a model is served; docs/decisions.md has the defaults' reasons.
void add_model_flags(CLI::App& app, Flags& flags) {
  app.add_option("--model-alias", flags.aliases,
                 "further name that requests may use for the model (may be given several times)");
  for (const recipe::Setting& setting : recipe::all_settings()) {
    const auto take = [&flags, &setting](const std::string& value) {
      flags.settings[setting.name] = value;
    };
    app.add_option_function<std::string>(setting.flag(), take, std::string(setting.help))
        ->check(
            CLI::IsMember(std::vector<std::string>(setting.values.begin(), setting.values.end())))
        ->default_str(std::string(setting.value_of({})));
  }
}

/// What the model's folder says, changed by the flags.
absl::StatusOr<ModelOptions> model_options(const Flags& flags) {
  ASSIGN_OR_RETURN(ModelOptions options, read_model_options(flags.model_folder));
  options.aliases.insert(options.aliases.end(), flags.aliases.begin(), flags.aliases.end());
  for (const auto& [name, value] : flags.settings) {
    RETURN_IF_ERROR(recipe::change_setting(name, value, options.settings));
  }
  return options;
}

void add_flags(CLI::App& app, Flags& flags) {
  EntrypointOptions& options = flags.options;
  options.listen = "127.0.0.1:8000";
  options.controller_url = "http://127.0.0.1:8080";
  options.entrypoint_id = "entrypoint-0";
  app.add_option("--listen", options.listen, "host:port for clients (port 0: any free one)")
      ->capture_default_str();
  app.add_option("--controller", options.controller_url, "URL of the controller")
      ->capture_default_str();
  app.add_option("--model", flags.model_folder, "folder with config.json and tokenizer.json")
      ->required();
  app.add_option("--model-id", flags.model_id, "name of the model for clients")->required();
  app.add_option("--entrypoint-id", options.entrypoint_id, "name of this process to engines")
      ->capture_default_str();
  app.add_option("--ready-file", flags.ready_file, "written once this process listens");
  app.add_option("--log-level", flags.log_level, "debug, info, warn, error or off")
      ->capture_default_str();
  add_model_flags(app, flags);
  app.add_option("--default-max-tokens", options.default_max_tokens,
                 "new tokens of a request that names no limit")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--balance", flags.balance,
                 "how requests are spread over engines: millrace, or for comparison a policy of "
                 "other gateways (docs/balancing.md): round_robin, least_requests, least_tokens, "
                 "power_of_two, moving_buckets, overlap_credit")
      ->capture_default_str();
  app.add_option("--max-queue", options.max_queue,
                 "requests without a token yet; more are answered with 429")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--request-deadline-s", flags.request_deadline_s,
                 "seconds a request may take, waiting for engines included")
      ->check(CLI::Range(1, 7 * 24 * 3600))
      ->capture_default_str();
  app.add_option("--response-store", options.response_store,
                 "file of the responses that clients may continue and look up; without it they are "
                 "kept in memory");
  app.add_option("--response-store-ttl", flags.response_store_ttl_s,
                 "seconds until a stored response is forgotten")
      ->check(CLI::Range(1, 10 * 365 * 24 * 3600))
      ->capture_default_str();
  app.add_option("--response-store-bytes", options.stored_responses.bytes,
                 "what stored responses may take; beyond it the oldest go")
      ->check(CLI::Range(std::size_t{1} << 16, std::size_t{1} << 40))
      ->capture_default_str();
  app.add_option("--cluster-secret", flags.cluster_secret,
                 "file of 32 bytes, its owner's alone, that the names of stored KV are made of; "
                 "without it no stored KV is looked for, and none is stored");
  app.add_option(
      "--api-keys", flags.api_keys,
      "TOML file with [[key]] tables: sha256 (of a key, in hexadecimal digits), account, "
      "and, if wanted, class (agent or chatbot: how long its KV is kept). Requests then "
      "need a key, as `Authorization: Bearer KEY` or `x-api-key: KEY`; without the file "
      "everybody may send requests. It is read again at SIGHUP; one with mistakes changes nothing");
  app.add_option(
         "--directory-listen", flags.directory_listen,
         "host:port for other entrypoints, which keep the directory of windows together with "
         "this one (port 0: any free one)")
      ->capture_default_str();
  app.add_option("--check-timeout", flags.check_timeout_ms,
                 "milliseconds that a request waits at most for what is known of its stored KV")
      ->check(CLI::Range(1, 10'000))
      ->capture_default_str();
  app.add_option("--max-body-bytes", options.http.body_bytes, "larger bodies are answered with 413")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--max-connections", options.http.connections, "client connections at a time")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--drain-timeout-s", flags.drain_timeout_s,
                 "seconds that running requests get to finish after SIGTERM")
      ->check(CLI::Range(0, 24 * 3600))
      ->capture_default_str();
}

/// Helpers for prompts of many kilobytes; beyond these the memory is the limit.
constexpr int kMaxEncodeHelpers = 15;

struct Model {
  std::unique_ptr<tokenizer::Tokenizer> tokenizer;
  std::unique_ptr<tokenizer::EncodePool> encode_pool;
  recipe::Deployment deployment;
  int context_tokens = 0;
};

absl::StatusOr<Model> open_model(const Flags& flags) {
  Model model;
  const std::string config_path = flags.model_folder + "/config.json";
  ASSIGN_OR_RETURN(const std::string config_text, read_file(config_path));
  const auto config = dataplane::model::parse_model_config(config_text);
  if (!config.ok()) return annotate(config.status(), config_path);
  ASSIGN_OR_RETURN(model.tokenizer,
                   tokenizer::Tokenizer::open(flags.model_folder + "/tokenizer.json"));
  ASSIGN_OR_RETURN(ModelOptions options, model_options(flags));
  recipe::Deployment& deployment = model.deployment;
  ASSIGN_OR_RETURN(deployment,
                   recipe::make_deployment(*model.tokenizer, options.settings, flags.model_id));
  const int other_cores = static_cast<int>(std::thread::hardware_concurrency()) - 1;
  model.encode_pool =
      std::make_unique<tokenizer::EncodePool>(std::clamp(other_cores, 0, kMaxEncodeHelpers));
  deployment.encode_pool = model.encode_pool.get();
  deployment.aliases = std::move(options.aliases);
  deployment.vocab_size = config->vocab_size;
  deployment.system_fingerprint = "millrace-" MILLRACE_VERSION;
  if (deployment.control.end_of_sequence != config->eos_token_id) {
    return absl::InvalidArgumentError(
        str_cat(flags.model_folder, ": the tokenizer's end of sequence is ",
                deployment.control.end_of_sequence, ", eos_token_id in config.json is ",
                config->eos_token_id));
  }
  if (model.tokenizer->id_bound() > config->vocab_size) {
    return absl::InvalidArgumentError(str_cat(
        flags.model_folder, ": tokenizer.json has ids up to ", model.tokenizer->id_bound() - 1,
        ", but vocab_size in config.json is ", config->vocab_size));
  }
  model.context_tokens = config->max_position_embeddings;
  return model;
}

absl::Status write_ready_file(const Flags& flags, const Entrypoint& entrypoint) {
  if (flags.ready_file.empty()) return absl::OkStatus();
  admin::ReadyFile ready;
  ready.pid = ::getpid();
  ready.address = entrypoint.address();
  ready.metrics_address = entrypoint.address();
  ready.directory_address = entrypoint.directory_address();
  ready.model_id = flags.model_id;
  return write_file_atomically(flags.ready_file, admin::to_json(ready));
}

absl::StatusOr<std::shared_ptr<const ApiKeys>> read_api_keys(const std::string& path) {
  if (path.empty()) return nullptr;
  ASSIGN_OR_RETURN(ApiKeys keys, ApiKeys::open(path));
  return std::make_shared<const ApiKeys>(std::move(keys));
}

/// The file of keys once more; those that are there stay when it is not as it should be.
void reload_api_keys(const std::string& path, Entrypoint& entrypoint, common::http::EventLoop& loop,
                     const Logger& log) {
  const auto keys = read_api_keys(path);
  if (!keys.ok()) {
    log.error("api_keys_not_reloaded", {{"reason", message_of(keys.status())}});
    return;
  }
  if (*keys == nullptr) return;  // there is no such file
  loop.post([&entrypoint, keys = *keys] { entrypoint.set_api_keys(keys); });
  log.info("api_keys_reloaded", {{"keys", (*keys)->size()}});
}

/// Waits for the first signal to stop; carries out those to reload.
void wait_for_end(const ShutdownSignal& signal, const ReloadSignal& reload,
                  const std::function<void()>& on_reload) {
  while (signal.count() == 0) {
    std::array<pollfd, 2> fds = {pollfd{signal.fd(), POLLIN, 0}, pollfd{reload.fd(), POLLIN, 0}};
    ::poll(fds.data(), fds.size(), -1);
    if (reload.take()) on_reload();
  }
}

/// Serves until told to stop twice, or once and what ran has finished or its time is over.
void serve(Entrypoint& entrypoint, common::http::EventLoop& loop, const ShutdownSignal& signal,
           const std::function<void()>& wait, std::chrono::seconds drain_timeout) {
  std::thread io([&] { loop.run(); });
  wait();
  auto drained = std::make_shared<std::promise<void>>();
  std::future<void> is_drained = drained->get_future();
  loop.post([&entrypoint, drained] { entrypoint.drain([drained] { drained->set_value(); }); });
  const auto end = std::chrono::steady_clock::now() + drain_timeout;
  while (is_drained.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready &&
         std::chrono::steady_clock::now() < end && signal.count() < 2) {
  }
  loop.stop();
  io.join();
}

absl::Status run(Flags flags) {
  ASSIGN_OR_RETURN(const LogLevel level, parse_log_level(flags.log_level));
  if (!admin::is_plain_id(flags.options.entrypoint_id)) {
    return annotate(admin::plain_id_error(flags.options.entrypoint_id), "--entrypoint-id");
  }
  const Logger log = Logger::to_stderr("entrypoint", level);
  ASSIGN_OR_RETURN(const ShutdownSignal signal, ShutdownSignal::install());
  ASSIGN_OR_RETURN(Model model, open_model(flags));
  ASSIGN_OR_RETURN(const ReloadSignal reload, ReloadSignal::install());
  ASSIGN_OR_RETURN(flags.options.api_keys, read_api_keys(flags.api_keys));
  if (!flags.cluster_secret.empty()) {
    KvOptions& kv = flags.options.kv.emplace();
    ASSIGN_OR_RETURN(kv.cluster_secret, read_secret_file(flags.cluster_secret));
    kv.entrypoint_id = flags.options.entrypoint_id;
    kv.directory_listen = flags.directory_listen;
    kv.check_timeout = std::chrono::milliseconds(flags.check_timeout_ms);
  }
  const auto policy = dataplane::routing::parse_policy(flags.balance);
  if (!policy.ok()) return annotate(policy.status(), "--balance");
  flags.options.balance = *policy;
  flags.options.context_tokens = model.context_tokens;
  flags.options.request_deadline = std::chrono::seconds(flags.request_deadline_s);
  flags.options.stored_responses.time_to_live = std::chrono::seconds(flags.response_store_ttl_s);
  Registry registry;
  common::http::EventLoop loop;
  ASSIGN_OR_RETURN(const std::unique_ptr<Entrypoint> entrypoint,
                   Entrypoint::start(loop, log, registry, model.deployment, flags.options));
  RETURN_IF_ERROR(write_ready_file(flags, *entrypoint));
  log.info("listening", {{"address", entrypoint->address()}, {"model", flags.model_id}});
  const auto wait = [&] {
    wait_for_end(signal, reload, [&] { reload_api_keys(flags.api_keys, *entrypoint, loop, log); });
  };
  serve(*entrypoint, loop, signal, wait, std::chrono::seconds(flags.drain_timeout_s));
  log.info("stopped");
  return absl::OkStatus();
}

}  // namespace
}  // namespace millrace::api::entrypoint

int main(int argc, char** argv) {
  CLI::App app(
      "Millrace's entrypoint: serves Chat Completions, Responses, Messages and Completions over "
      "HTTP, with the engines of the controller's routing view. A model's folder may hold "
      "serving.json, an object that gives aliases and, by name, the settings below; flags win.",
      "millrace-entrypoint");
  millrace::api::entrypoint::Flags flags;
  millrace::api::entrypoint::add_flags(app, flags);
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = millrace::api::entrypoint::run(std::move(flags));
  if (status.ok()) return 0;
  std::fprintf(stderr, "millrace-entrypoint: %s\n",
               std::string(millrace::message_of(status)).c_str());
  return 1;
}
