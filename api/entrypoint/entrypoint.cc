#include "api/entrypoint/entrypoint.h"

#include <algorithm>
#include <utility>

#include "api/entrypoint/engine_messages.h"
#include "api/entrypoint/kv_explain.h"
#include "api/recipe/request_error.h"
#include "api/recipe/tokenize.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::entrypoint {
namespace {

using common::http::HttpServer;
using common::http::HttpServerOptions;
using common::http::ServerReply;
using common::http::ServerRequest;
using Clock = std::chrono::steady_clock;

// Bodies that wait for the decoding thread; each is at most as long as the body limit.
constexpr std::size_t kDecodeQueue = 64;
// After the last answer of a drain: for clients to read it and close.
constexpr std::chrono::milliseconds kCloseGrace{1000};

constexpr std::string_view kMessagesPath = "/v1/messages";
constexpr std::string_view kModelPath = "/v1/models/";

std::int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

/// Later processes have higher ones.
std::uint64_t new_incarnation() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(
                                        std::chrono::system_clock::now().time_since_epoch())
                                        .count());
}

Refusal refusal_of(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
      return Refusal::kNoEngine;
    case absl::StatusCode::kResourceExhausted:
      return Refusal::kQueueFull;
    default:
      return Refusal::kInvalid;
  }
}

/// By the path, which belongs to a protocol whether or not there is such a route.
const recipe::ErrorForm& errors_of(std::string_view path) {
  return path.substr(0, kMessagesPath.size()) == kMessagesPath ? recipe::kMessagesErrors
                                                               : recipe::kOpenAiErrors;
}

/// An answer that the listener gives by itself.
ServerReply listener_reply(int status, std::string_view message, std::string_view path,
                           const std::string& request_id) {
  absl::Status failure = absl::InvalidArgumentError(to_absl(message));
  if (status == 404) failure = absl::NotFoundError(to_absl(message));
  if (status == 413) failure = absl::OutOfRangeError(to_absl(message));
  if (status == 503) failure = absl::UnavailableError(to_absl(message));
  ServerReply reply = error_reply(failure, errors_of(path), request_id);
  // The listener's own status is finer than the code's.
  if (status != 503) reply.status = status;
  name_request(request_id, reply);
  return reply;
}

void reply_text(common::http::ResponseWriter& writer, int status, std::string body,
                std::string content_type) {
  ServerReply reply;
  reply.status = status;
  reply.body = std::move(body);
  reply.content_type = std::move(content_type);
  writer.respond(std::move(reply));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Entrypoint>> Entrypoint::start(common::http::EventLoop& loop,
                                                              Logger log, Registry& registry,
                                                              recipe::Deployment deployment,
                                                              const EntrypointOptions& options) {
  std::unique_ptr<Entrypoint> entrypoint(
      new Entrypoint(loop, std::move(log), registry, std::move(deployment), options));
  if (options.kv) {
    ASSIGN_OR_RETURN(entrypoint->kv_, KvService::open(loop, entrypoint->log_, registry,
                                                      options.controller_url, *options.kv));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<ResponseStore> store,
                   ResponseStore::open({.path = options.response_store,
                                        .bounds = options.stored_responses,
                                        .now_seconds = unix_seconds}));
  HttpServerOptions server;
  server.listen = options.listen;
  server.limits = options.http;
  server.error_reply = [self = entrypoint.get()](int status, std::string_view message,
                                                 std::string_view path) {
    return listener_reply(status, message, path, self->new_request_id());
  };
  ASSIGN_OR_RETURN(entrypoint->server_, HttpServer::start(loop, std::move(server)));
  entrypoint->add_responses(std::move(store));
  entrypoint->add_routes();
  Entrypoint* self = entrypoint.get();
  entrypoint->poller_ = std::make_unique<ViewPoller>(
      loop, self->log_, options.controller_url, options.view_period,
      [self](const admin::RoutingView& view) {
        const bool is_ours = self->take_view(view);
        if (is_ours) {
          self->has_view_ = true;
          if (self->kv_ != nullptr) self->kv_->apply_view(view);
          self->metrics_.set_view_version(view.version);
        } else {
          self->log_.error("view_of_another_model",
                           {{"view", view.model_id}, {"ours", self->deployment_.model_id}});
        }
      });
  entrypoint->reporter_ = std::make_unique<DemandReporter>(
      loop, self->log_, options.controller_url, options.entrypoint_id, options.report_period,
      [self] { return self->demand_report(); });
  return entrypoint;
}

Entrypoint::Entrypoint(common::http::EventLoop& loop, Logger log, Registry& registry,
                       recipe::Deployment deployment, const EntrypointOptions& options)
    : loop_(loop),
      log_(std::move(log)),
      registry_(registry),
      deployment_(std::move(deployment)),
      options_(options),
      metrics_(registry),
      created_seconds_(unix_seconds()),
      incarnation_(new_incarnation()),
      balancer_({.policy = options.balance, .seed = std::random_device{}()}),
      api_keys_(options.api_keys),
      decode_queue_(kDecodeQueue) {
  pool_ = std::make_unique<EnginePool>(
      loop_, log_, deployment_.model_id, options_.entrypoint_id, options_.engines,
      EnginePool::Callbacks{
          .on_events =
              [this](const std::string& worker, const auto& events) {
                table_->on_events(worker, events);
                if (kv_ == nullptr) return;
                if (const std::string& layout = kv_layout_of(events); !layout.empty())
                  kv_->set_layout(layout);
                kv_->add_windows(to_directory_entries(events));
              },
          .on_lost = [this](const std::string& worker) { table_->on_lost(worker); },
          .on_up = [this](const std::string& worker) { balancer_.forget_news(worker); },
          .on_worker = [this](const std::string& worker,
                              const WorkerState& state) { balancer_.set_worker(worker, state); },
          .on_capacity = [this] { table_->dispatch(); }});
  table_ = std::make_unique<RequestTable>(loop_, log_, metrics_, *pool_, balancer_,
                                          [this] { check_drained(); });
  decode_thread_ = std::thread([this] {
    while (std::optional<Work> work = decode_queue_.pop()) (*work)();
  });
}

Entrypoint::~Entrypoint() {
  poller_ = nullptr;
  reporter_ = nullptr;
  decode_queue_.close();
  decode_thread_.join();
  // Requests before the listener: their writers end with their connections.
  arrivals_.clear();
  table_ = nullptr;
  responses_ = nullptr;
  server_ = nullptr;
  pool_ = nullptr;
}

void Entrypoint::add_routes() {
  add_generation("/v1/chat/completions", recipe::kOpenAiErrors, recipe::prepare_chat);
  add_generation("/v1/completions", recipe::kOpenAiErrors, recipe::prepare_completion);
  add_generation("/v1/messages", recipe::kMessagesErrors, recipe::prepare_messages);
  add_decoded(
      "/v1/messages/count_tokens", recipe::kMessagesErrors,
      [this](const std::string& request_id, const std::string& body, const Caller&) -> Work {
        return [this, request_id, count = recipe::count_messages_tokens(body, deployment_)] {
          answer(request_id, count);
        };
      });
  add_decoded(
      "/tokenize", recipe::kOpenAiErrors,
      [this](const std::string& request_id, const std::string& body, const Caller&) -> Work {
        return [this, request_id,
                tokens = recipe::tokenize(body, deployment_, options_.context_tokens)] {
          answer(request_id, tokens);
        };
      });
  add_decoded(
      "/detokenize", recipe::kOpenAiErrors,
      [this](const std::string& request_id, const std::string& body, const Caller&) -> Work {
        return [this, request_id, text = recipe::detokenize(body, deployment_)] {
          answer(request_id, text);
        };
      });
  add_decoded("/v1/kv/explain", recipe::kOpenAiErrors,
              [this](const std::string& request_id, const std::string& body, const Caller& caller) {
                return decode_explain(request_id, body, caller);
              });
  add_models();
  server_->route("GET", "/health", [](const ServerRequest&, const Writer& writer) {
    reply_text(*writer, 200, R"({"status":"ok"})", "application/json");
  });
  server_->route("GET", "/ready", [this](const ServerRequest&, Writer writer) {
    const absl::Status status = readiness();
    if (status.ok()) {
      reply_text(*writer, 200, R"({"status":"ready"})", "application/json");
    } else {
      Client{new_request_id(), recipe::kOpenAiErrors, std::move(writer)}.refuse(status);
    }
  });
  server_->route("GET", "/metrics", [this](const ServerRequest&, const Writer& writer) {
    reply_text(*writer, 200, registry_.exposition(), "text/plain; version=0.0.4; charset=utf-8");
  });
}

/// The list of models and each of them, in the form that the client's family knows.
void Entrypoint::add_models() {
  using Body = std::function<absl::StatusOr<std::string>(const ServerRequest&, recipe::ModelsForm)>;
  const auto serve = [this](const Body& body) {
    return [this, body](const ServerRequest& request, Writer writer) {
      const bool is_openai = request.header("anthropic-version").empty();
      const Client client{new_request_id(),
                          is_openai ? recipe::kOpenAiErrors : recipe::kMessagesErrors,
                          std::move(writer)};
      if (!authenticate(request, client)) return;
      const absl::StatusOr<std::string> text =
          body(request, is_openai ? recipe::ModelsForm::kOpenAi : recipe::ModelsForm::kAnthropic);
      if (text.ok()) {
        reply_text(*client.writer, 200, *text, "application/json");
      } else {
        client.refuse(text.status());
      }
    };
  };
  server_->route("GET", "/v1/models", serve([this](const ServerRequest&, recipe::ModelsForm form) {
                   return recipe::models_body(deployment_, model_facts(), form);
                 }));
  server_->route("GET", std::string(kModelPath) + "*",
                 serve([this](const ServerRequest& request, recipe::ModelsForm form) {
                   return recipe::model_body(
                       deployment_, model_facts(), form,
                       std::string_view(request.path).substr(kModelPath.size()));
                 }));
}

recipe::ModelFacts Entrypoint::model_facts() const {
  return {.created_seconds = created_seconds_, .context_tokens = options_.context_tokens};
}

void Entrypoint::add_responses(std::unique_ptr<ResponseStore> store) {
  responses_ = std::make_unique<ResponsesService>(
      ResponsesService::Host{
          .loop = loop_,
          .deployment = deployment_,
          .entrypoint_id = options_.entrypoint_id,
          .decode_later = [this](Work work) { return decode_queue_.try_push(std::move(work)); },
          .admit =
              [this](const std::string& request_id,
                     const std::shared_ptr<absl::StatusOr<recipe::PreparedResponse>>& prepared,
                     const KvService::Blocks& blocks) {
                look_up(blocks, [this, request_id, prepared](const Findings& findings) {
                  admit_response(request_id, std::move(*prepared), findings);
                });
              },
          .name_blocks =
              [this](const Caller& caller, const recipe::PreparedRequest& request) {
                return name_blocks(caller, request);
              },
          .on_change = [this] { check_drained(); }},
      log_, registry_, std::move(store));
  add_decoded("/v1/responses", recipe::kOpenAiErrors,
              [this](const std::string& request_id, const std::string& body, const Caller& caller) {
                return responses_->decode(request_id, body, caller);
              });
  using Serve = void (ResponsesService::*)(const ServerRequest&, const std::string&, Client);
  const auto below = [this](Serve serve) {
    return [this, serve](const ServerRequest& request, Writer writer) {
      Client client{new_request_id(), recipe::kOpenAiErrors, std::move(writer)};
      const std::optional<Caller> caller = authenticate(request, client);
      if (caller) ((*responses_).*serve)(request, caller->account, std::move(client));
    };
  };
  server_->route("GET", "/v1/responses/*", below(&ResponsesService::get));
  server_->route("POST", "/v1/responses/*", below(&ResponsesService::post));
  server_->route("DELETE", "/v1/responses/*", below(&ResponsesService::erase));
}

/// Serves a path whose bodies are read on the decoding thread.
void Entrypoint::add_decoded(const std::string& path, const recipe::ErrorForm& errors,
                             Decode decode) {
  server_->route("POST", path,
                 [this, errors, decode = std::move(decode)](ServerRequest request, Writer writer) {
                   Client client{new_request_id(), errors, std::move(writer)};
                   const std::optional<Caller> caller = authenticate(request, client);
                   if (!caller) return;
                   receive(std::move(request.body), std::move(client), *caller, decode);
                 });
}

void Entrypoint::add_generation(const std::string& path, const recipe::ErrorForm& errors,
                                recipe::PrepareFunction prepare) {
  add_decoded(path, errors,
              [this, prepare](const std::string& request_id, const std::string& body,
                              const Caller& caller) -> Work {
                // std::function wants a copyable value.
                auto prepared = std::make_shared<absl::StatusOr<recipe::PreparedRequest>>(
                    prepare(body, deployment_, {request_id, unix_seconds()}));
                KvService::Blocks blocks;
                if (prepared->ok()) blocks = name_blocks(caller, **prepared);
                return [this, request_id, prepared, blocks] {
                  look_up(blocks, [this, request_id, prepared](const Findings& findings) {
                    admit(request_id, std::move(*prepared), findings);
                  });
                };
              });
}

/// Who sends the request; answers it when that is nobody.
std::optional<Caller> Entrypoint::authenticate(const ServerRequest& request,
                                               const Client& client) const {
  if (api_keys_ == nullptr) return Caller{};
  const std::string_view key = key_of(request);
  std::optional<Caller> caller = api_keys_->find(key);
  if (!caller) refuse(client, Refusal::kUnauthenticated, unknown_key_error(key));
  return caller;
}

/// Takes a request in: what can be refused without reading it is refused here.
void Entrypoint::receive(std::string body, Client client, const Caller& caller,
                         const Decode& decode) {
  if (is_draining_) {
    refuse(client, Refusal::kDraining, readiness());
    return;
  }
  if (table_->waiting() + arrivals_.size() >= options_.max_queue) {
    refuse(client, Refusal::kQueueFull,
           absl::ResourceExhaustedError(
               str_cat("the queue is full: ", options_.max_queue, " requests wait")));
    return;
  }
  const std::string request_id = client.request_id;
  client.writer->on_close([this, request_id] {
    arrivals_.erase(request_id);
    check_drained();
  });
  const Arrival& arrival =
      arrivals_.insert_or_assign(request_id, Arrival{std::move(client), caller, Clock::now()})
          .first->second;
  Work work = [this, request_id, decode, caller, body = std::move(body)] {
    loop_.post(decode(request_id, body, caller));
  };
  if (decode_queue_.try_push(std::move(work))) return;
  refuse(arrival.client, Refusal::kQueueFull,
         absl::ResourceExhaustedError("too many requests arrive at once"));
  arrivals_.erase(request_id);
}

/// Back on the loop: the request, unless its client has gone.
std::optional<Entrypoint::Arrival> Entrypoint::take_arrival(const std::string& request_id) {
  const auto it = arrivals_.find(request_id);
  if (it == arrivals_.end()) return std::nullopt;
  std::optional<Arrival> arrival = std::move(it->second);
  arrivals_.erase(it);
  return arrival;
}

/// Back on the loop: what needs no engine is answered.
void Entrypoint::answer(const std::string& request_id, const absl::StatusOr<std::string>& body) {
  const std::optional<Arrival> arrival = take_arrival(request_id);
  if (!arrival) return;
  if (body.ok()) {
    ServerReply reply;
    reply.body = *body;
    arrival->client.respond(std::move(reply));
  } else {
    refuse(arrival->client, Refusal::kInvalid, body.status());
  }
  check_drained();
}

/// On the decoding thread: what is stored of a chat request, which is not run, and not used.
Entrypoint::Work Entrypoint::decode_explain(const std::string& request_id, const std::string& body,
                                            const Caller& caller) {
  const absl::StatusOr<recipe::PreparedRequest> prepared =
      recipe::prepare_chat(body, deployment_, {request_id, unix_seconds()});
  if (!prepared.ok()) {
    return [this, request_id, status = prepared.status()] { answer(request_id, status); };
  }
  const std::size_t prompt_tokens = prepared->prompt.size();
  const KvService::Blocks blocks = name_blocks(caller, *prepared);
  return [this, request_id, prompt_tokens, blocks] {
    const auto explain = [this, request_id, prompt_tokens](const Findings& findings) {
      answer(request_id, explain_body(prompt_tokens, findings));
    };
    kv_ == nullptr ? explain({}) : kv_->look_up(blocks, explain);
  };
}

/// On the decoding thread; nullptr when the request's KV is none of our business.
KvService::Blocks Entrypoint::name_blocks(const Caller& caller,
                                          const recipe::PreparedRequest& request) const {
  return kv_ == nullptr ? nullptr : kv_->name(caller, request);
}

/// Back on the loop: CHECK, before anything is decided about the request. With null blocks there is
/// nothing to look up, and no waiting.
void Entrypoint::look_up(const KvService::Blocks& blocks,
                         std::function<void(const Findings&)> then) {
  if (kv_ == nullptr || blocks == nullptr) {
    then({});
    return;
  }
  kv_->look_up(blocks, [this, blocks, then = std::move(then)](const Findings& findings) {
    kv_->touch(*blocks, findings);
    then(findings);
  });
}

/// The last checks, then the request is accepted.
void Entrypoint::admit(const std::string& request_id,
                       absl::StatusOr<recipe::PreparedRequest> prepared, const Findings& findings) {
  std::optional<Arrival> arrival = take_arrival(request_id);
  if (!arrival) return;
  if (!prepared.ok()) {
    refuse(arrival->client, Refusal::kInvalid, prepared.status());
    check_drained();
    return;
  }
  absl::StatusOr<std::vector<EngineChoice>> choices = choices_of(*prepared, findings);
  if (!choices.ok()) {
    refuse(arrival->client, refusal_of(choices.status()), choices.status());
    check_drained();
    return;
  }
  EngineRequest request{.request_id = request_id,
                        .choices = *std::move(choices),
                        .sampling = prepared->sampling,
                        .arrival = arrival->time,
                        .deadline = arrival->time + options_.request_deadline};
  arrival->client.writer->on_close([this, request_id] { table_->cancel(request_id); });
  auto session = std::make_unique<GenerationSession>(
      SessionContext{loop_, deployment_, metrics_, options_.keep_alive}, *std::move(prepared),
      std::move(arrival->client));
  table_->add(std::move(request), std::move(session));
}

/// As admit(), with a job between the client and its answer.
void Entrypoint::admit_response(const std::string& request_id,
                                absl::StatusOr<recipe::PreparedResponse> prepared,
                                const Findings& findings) {
  const auto arrival = arrivals_.find(request_id);
  if (arrival == arrivals_.end()) return;
  if (!prepared.ok()) {
    admit(request_id, prepared.status(), findings);
    return;
  }
  recipe::PreparedRequest request = responses_->open(
      *std::move(prepared), arrival->second.caller.account, arrival->second.client);
  admit(request_id, std::move(request), findings);
  responses_->admitted(request_id);
}

/// What the engines are to compute; an error when there is no room or no engine for it.
absl::StatusOr<std::vector<EngineChoice>> Entrypoint::choices_of(
    const recipe::PreparedRequest& prepared, const Findings& findings) {
  if (table_->waiting() + prepared.choice_count() > options_.max_queue) {
    return absl::ResourceExhaustedError(
        str_cat("the queue has no room for ", prepared.choice_count(), " choices"));
  }
  // Chosen once, so that an attempt elsewhere draws the same tokens.
  std::uint64_t seed =
      prepared.sampling.seed.value_or(static_cast<std::uint64_t>(random_()) << 32 | random_());
  std::vector<EngineChoice> choices;
  choices.reserve(prepared.choice_count());
  std::size_t index = 0;
  const auto add = [&](const std::vector<TokenId>& prompt) -> absl::Status {
    ASSIGN_OR_RETURN(const std::uint32_t limit, output_limit(prepared, prompt.size()));
    RETURN_IF_ERROR(check_capacity(prompt.size(), limit));
    std::shared_ptr<const KvScope> kv;
    if (index < findings.size()) kv = std::make_shared<const KvScope>(findings[index].scope);
    ++index;
    for (std::uint32_t i = 0; i < prepared.sampling.choices; ++i) {
      choices.push_back({.prompt = prompt, .seed = seed++, .max_new_tokens = limit, .kv = kv});
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(add(prepared.prompt));
  for (const std::vector<TokenId>& prompt : prepared.further_prompts) RETURN_IF_ERROR(add(prompt));
  return choices;
}

/// How many tokens may be generated: a limit beyond the context is met at the context's end.
absl::StatusOr<std::uint32_t> Entrypoint::output_limit(const recipe::PreparedRequest& prepared,
                                                       std::size_t prompt_tokens) const {
  const auto context = static_cast<std::size_t>(options_.context_tokens);
  if (prompt_tokens >= context) {
    return recipe::field_error(
        prepared.prompt_field,
        str_cat("This model's maximum context length is ", context, " tokens. Your prompt has ",
                prompt_tokens, " tokens and leaves no room for an answer."),
        "context_length_exceeded");
  }
  const auto room = static_cast<std::uint32_t>(context - prompt_tokens);
  return std::min(room, prepared.sampling.max_tokens.value_or(options_.default_max_tokens));
}

/// False when it is of another model; nothing changes then.
bool Entrypoint::take_view(const admin::RoutingView& view) {
  if (view.model_id != deployment_.model_id) return false;
  balancer_.apply_view(view);
  return pool_->apply_view(view);
}

admin::EntrypointReport Entrypoint::demand_report() const {
  const auto& demand = balancer_.demand_ns();
  return {.incarnation = incarnation_,
          .sequence = 0,  // the reporter's
          .demand_ns = {demand.begin(), demand.end()},
          .costs = pool_->worker_costs()};
}

/// A request is accepted only when engines are there and could hold it.
absl::Status Entrypoint::check_capacity(std::size_t prompt_tokens,
                                        std::uint32_t max_new_tokens) const {
  if (!pool_->is_serving()) return readiness();
  for (const admin::WorkerRole role : {admin::WorkerRole::kPrefill, admin::WorkerRole::kDecode}) {
    if (!balancer_.could_hold(role, kv_blocks_needed(prompt_tokens, max_new_tokens, role))) {
      return absl::InvalidArgumentError(str_cat("a prompt of ", prompt_tokens, " tokens and up to ",
                                                max_new_tokens,
                                                " new ones do not fit the engines' KV memory"));
    }
  }
  return absl::OkStatus();
}

void Entrypoint::refuse(const Client& client, Refusal reason, const absl::Status& status) const {
  metrics_.refused(reason);
  client.refuse(status);
}

absl::Status Entrypoint::readiness() const {
  if (is_draining_) return absl::UnavailableError("this server is shutting down");
  if (!has_view_) return absl::UnavailableError("no routing view from the controller yet");
  if (pool_->accepting(admin::WorkerRole::kPrefill) == 0) {
    return absl::UnavailableError("no prefill engine is available");
  }
  if (pool_->accepting(admin::WorkerRole::kDecode) == 0) {
    return absl::UnavailableError("no decode engine is available");
  }
  return absl::OkStatus();
}

void Entrypoint::drain(std::function<void()> done) {
  is_draining_ = true;
  on_drained_ = std::move(done);
  log_.info("draining", {{"requests", table_->size() + arrivals_.size()}});
  check_drained();
}

void Entrypoint::check_drained() {
  const bool is_busy = table_->size() + arrivals_.size() > 0 || !responses_->is_idle();
  if (!on_drained_ || is_busy || close_by_ != TimePoint()) return;
  close_by_ = Clock::now() + kCloseGrace;
  server_->drain();
  close_when_idle();
}

void Entrypoint::close_when_idle() {
  if (server_->open_connections() == 0 || Clock::now() >= close_by_) {
    on_drained_();
    return;
  }
  close_timer_ = loop_.after(std::chrono::milliseconds(10), [this] { close_when_idle(); });
}

std::string Entrypoint::new_request_id() {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string id;
  for (int word = 0; word < 3; ++word) {
    unsigned bits = random_();
    for (int i = 0; i < 8; ++i, bits >>= 4) id.push_back(kDigits[bits & 15]);
  }
  return id;
}

}  // namespace millrace::api::entrypoint
