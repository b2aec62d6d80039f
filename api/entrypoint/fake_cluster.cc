#include "api/entrypoint/fake_cluster.h"

#include <grpcpp/grpcpp.h>

#include <future>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "api/proto/engine.grpc.pb.h"
#include "api/recipe/prompt.h"
#include "common/check.h"
#include "common/http/http_client.h"
#include "common/str_cat.h"

namespace millrace::api::entrypoint::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr const char* kModelId = "nano";
// What the view and the workers agree on: 32 bytes of 0xab.
const std::string kDigest(32, '\xab');
const std::string kDigestHex = [] {
  std::string hex;
  for (int i = 0; i < 32; ++i) hex += "ab";
  return hex;
}();

}  // namespace

char letter_at(std::size_t position) { return static_cast<char>('a' + position % 26); }

std::string artifact_digest_hex() { return kDigestHex; }

std::string text_behind(std::size_t prompt_tokens, std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text.push_back(letter_at(prompt_tokens + i));
  return text;
}

bool eventually(const std::function<bool()>& condition, std::chrono::milliseconds timeout) {
  const auto end = Clock::now() + timeout;
  while (!condition()) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(2ms);
  }
  return true;
}

/// One request at a worker.
struct FakeRequest {
  proto::v1::RequestKey key;
  std::uint32_t position = 0;  // of its next token
  std::uint32_t end = 0;       // one past its last
  std::uint32_t hit_tokens = 0;
  Clock::time_point next;
};

/// Prefills that a worker runs at a time.
constexpr std::size_t kMostPrefills = 16;

/// How a prefill worker gets its requests: it asks for whatever is offered first, one at a time.
struct Pull {
  proto::v1::Offers offers;
  std::uint64_t claims = 0;
  bool is_open = false;

  void hear(const proto::v1::EngineCommand& command) {
    if (command.has_offers()) {
      offers = command.offers();
      if (offers.answered_claim() != 0) is_open = false;
    }
    if (command.has_start_prefill() && command.start_prefill().answered_claim() != 0) {
      is_open = false;
    }
  }

  void claim(bool has_room, proto::v1::EngineEvents& events) {
    if (!has_room || is_open || offers.buckets().empty()) return;
    is_open = true;
    events.mutable_claim()->set_number(++claims);
    events.mutable_claim()->set_bucket(offers.buckets(0).bucket());
  }
};

struct FakeWorker::Impl final : proto::v1::Engine::Service {
  static constexpr double kRowNs = 1000;  // what they say that prefill costs
  using Stream = grpc::ServerReaderWriter<proto::v1::EngineEvents, proto::v1::EngineCommand>;

  grpc::Status Connect(grpc::ServerContext* context, Stream* stream) override {
    proto::v1::EngineCommand command;
    if (!stream->Read(&command) || !command.has_hello()) return grpc::Status::OK;
    const auto& identity = command.hello().identity();
    if (identity.model_id() != kModelId || identity.artifact_digest() != kDigest) {
      return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "another model or artifact");
    }
    greeted_row_ns = command.hello().prefill_cost().linear_ns();
    std::vector<FakeRequest> requests;
    std::vector<proto::v1::EngineEvent> refusals;
    std::uint64_t started = 0;
    std::uint64_t loads = 0;
    Pull pull;
    std::atomic<bool> is_over = false;
    std::mutex stream_mutex;
    std::thread engine([&] {
      auto last_report = Clock::time_point();
      while (!is_over && !context->IsCancelled()) {
        std::this_thread::sleep_for(1ms);
        proto::v1::EngineEvents events;
        {
          const std::lock_guard lock(stream_mutex);
          step(requests, events);
          for (auto& refusal : refusals) *events.add_events() = std::move(refusal);
          refusals.clear();
          {
            const std::lock_guard windows_lock(seeds_mutex);
            for (auto& window : windows) *events.add_windows() = std::move(window);
            windows.clear();
          }
          pull.claim(role == admin::WorkerRole::kPrefill && requests.size() < kMostPrefills,
                     events);
          if (events.events().empty() && events.windows().empty() && !events.has_claim() &&
              Clock::now() - last_report < 50ms)
            continue;
          events.mutable_load()->set_running(static_cast<std::uint32_t>(requests.size()));
          events.mutable_load()->set_kv_blocks_total(1000);
          events.mutable_load()->set_started_requests(owner->is_lying ? started + 1 : started);
          events.mutable_load()->set_sequence(++loads);
          events.mutable_load()->set_wants_more(role == admin::WorkerRole::kPrefill);
          if (last_report == Clock::time_point()) {
            events.set_kv_layout_id(kKvLayout);
            if (role == admin::WorkerRole::kPrefill) {
              events.mutable_prefill_cost()->set_linear_ns(kRowNs);
            }
          }
        }
        last_report = Clock::now();
        if (!stream->Write(events)) break;
      }
    });
    while (stream->Read(&command)) {
      const std::lock_guard lock(stream_mutex);
      pull.hear(command);
      obey(command, requests, refusals, started);
    }
    is_over = true;
    engine.join();
    running -= static_cast<int>(requests.size());
    return grpc::Status::OK;
  }

  void obey(const proto::v1::EngineCommand& command, std::vector<FakeRequest>& requests,
            std::vector<proto::v1::EngineEvent>& refusals, std::uint64_t& started) {
    const auto refuse = [&](const proto::v1::RequestKey& key, int code) {
      proto::v1::EngineEvent event;
      *event.mutable_key() = key;
      event.mutable_failed()->set_code(code);
      refusals.push_back(std::move(event));
    };
    const auto start = [&](const auto& message) {
      ++started;
      ++starts;
      if (owner->is_full) {
        refuse(message.key(), static_cast<int>(absl::StatusCode::kResourceExhausted));
        return;
      }
      ++running;
      {
        const std::lock_guard seeds_lock(seeds_mutex);
        seeds.insert(message.sampling().seed());
        kv_scopes.push_back(message.has_kv() ? message.kv().SerializeAsString() : "");
      }
      requests.push_back({message.key(), static_cast<std::uint32_t>(message.tokens_size()),
                          message.prompt_tokens() + message.sampling().max_new_tokens(),
                          message.kv().hit_tokens(), Clock::now() + owner->token_delay.load()});
    };
    if (command.has_start_prefill()) {
      start(command.start_prefill());
    } else if (command.has_start_decode()) {
      const std::lock_guard lock(exports_mutex());
      const std::uint64_t export_id = command.start_decode().handover().export_id();
      const bool is_known = exports().contains(export_id);
      if (is_known && !owner->is_full) exports().erase(export_id);
      if (is_known) {
        start(command.start_decode());
      } else {
        ++started;
        refuse(command.start_decode().key(), static_cast<int>(absl::StatusCode::kUnavailable));
      }
    } else if (command.has_cancel()) {
      const std::lock_guard lock(exports_mutex());
      exports().erase(command.cancel().export_id());
      running -= static_cast<int>(std::erase_if(requests, [&](const FakeRequest& request) {
        return request.key.request_id() == command.cancel().key().request_id() &&
               request.key.attempt() == command.cancel().key().attempt();
      }));
    }
  }

  /// One token of every request whose time has come.
  void step(std::vector<FakeRequest>& requests, proto::v1::EngineEvents& events) {
    for (auto it = requests.begin(); it != requests.end();) {
      if (Clock::now() < it->next) {
        ++it;
        continue;
      }
      proto::v1::SampledToken token;
      token.set_token(letters[it->position % 26]);
      token.set_logprob(-0.5f);
      ++it->position;
      auto finish = proto::v1::FINISH_REASON_NONE;
      if (it->position == owner->end_position) finish = proto::v1::FINISH_REASON_STOP;
      if (it->position == it->end) finish = proto::v1::FINISH_REASON_LENGTH;
      auto* event = events.add_events();
      *event->mutable_key() = it->key;
      const bool is_prefill = role == admin::WorkerRole::kPrefill;
      if (is_prefill) {
        auto& prefilled = *event->mutable_prefilled();
        *prefilled.mutable_token() = token;
        prefilled.set_finish(finish);
        if (owner->reports_hits) prefilled.set_cached_tokens(it->hit_tokens);
        if (finish == proto::v1::FINISH_REASON_NONE) {
          prefilled.mutable_handover()->set_export_id(add_export());
        }
      } else {
        *event->mutable_sampled()->add_tokens() = token;
        event->mutable_sampled()->set_finish(finish);
      }
      it->next += owner->token_delay.load();
      if (is_prefill || finish != proto::v1::FINISH_REASON_NONE) {
        it = requests.erase(it);
        --running;
      } else {
        ++it;
      }
    }
  }

  // All fake workers share one table of hand-overs, as if on one host. An export is removed with
  // its worker.
  static std::mutex& exports_mutex() {
    static std::mutex mutex;
    return mutex;
  }
  static std::map<std::uint64_t, const Impl*>& exports() {
    static std::map<std::uint64_t, const Impl*> table;
    return table;
  }
  std::uint64_t add_export() {
    static std::atomic<std::uint64_t> next = 1;
    const std::lock_guard lock(exports_mutex());
    exports()[next] = this;
    return next++;
  }

  FakeWorker* owner = nullptr;
  admin::WorkerRole role = admin::WorkerRole::kPrefill;
  std::vector<TokenId> letters;
  std::atomic<int> running = 0;
  std::atomic<int> starts = 0;
  std::atomic<double> greeted_row_ns = 0;
  mutable std::mutex seeds_mutex;  // of the lists below
  std::multiset<std::uint64_t> seeds;
  std::vector<std::string> kv_scopes;
  std::vector<proto::v1::StoredWindow> windows;  // to be told
  std::unique_ptr<grpc::Server> server;
  std::string address;
};

FakeWorker::FakeWorker(admin::WorkerRole role, const tokenizer::Tokenizer& tokenizer)
    : impl_(std::make_unique<Impl>()) {
  impl_->owner = this;
  impl_->role = role;
  for (std::size_t i = 0; i < 26; ++i) {
    const auto ids = tokenizer.encode_text(std::string(1, letter_at(i)));
    CHECK(ids.ok() && ids->size() == 1);
    impl_->letters.push_back(ids->front());
  }
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(impl_.get());
  impl_->server = builder.BuildAndStart();
  CHECK(impl_->server != nullptr);
  impl_->address = str_cat("127.0.0.1:", port);
}

FakeWorker::~FakeWorker() {
  impl_->server->Shutdown(std::chrono::system_clock::now());
  const std::lock_guard lock(Impl::exports_mutex());
  std::erase_if(Impl::exports(), [&](const auto& entry) { return entry.second == impl_.get(); });
}

const std::string& FakeWorker::address() const { return impl_->address; }
int FakeWorker::running() const { return impl_->running; }
double FakeWorker::greeted_row_ns() const { return impl_->greeted_row_ns; }
int FakeWorker::starts() const { return impl_->starts; }
std::multiset<std::uint64_t> FakeWorker::seeds() const {
  const std::lock_guard lock(impl_->seeds_mutex);
  return impl_->seeds;
}
void FakeWorker::leave_window(const storage::BlockKey& key, std::uint32_t anchor) {
  proto::v1::StoredWindow window;
  window.set_key(key.bytes.data(), key.bytes.size());
  window.set_anchor(anchor);
  window.mutable_ref()->set_host_id("host-0");
  window.mutable_ref()->set_incarnation(1);
  window.mutable_ref()->set_slot(5);
  const std::lock_guard lock(impl_->seeds_mutex);
  impl_->windows.push_back(std::move(window));
}
std::vector<std::string> FakeWorker::kv_scopes() const {
  const std::lock_guard lock(impl_->seeds_mutex);
  return impl_->kv_scopes;
}
int FakeWorker::open_exports() const {
  const std::lock_guard lock(Impl::exports_mutex());
  int count = 0;
  for (const auto& [id, owner] : Impl::exports()) count += owner == impl_.get() ? 1 : 0;
  return count;
}

std::unique_ptr<tokenizer::Tokenizer> nano_tokenizer() {
  auto opened =
      tokenizer::Tokenizer::open(MILLRACE_SOURCE_DIR "/deploy/models/nano/tokenizer.json");
  CHECK(opened.ok());
  return std::move(*opened);
}

recipe::Deployment nano_deployment(const tokenizer::Tokenizer& tokenizer) {
  recipe::Deployment deployment;
  deployment.model_id = kModelId;
  deployment.aliases = {"nano/alias"};
  deployment.system_fingerprint = "test";
  deployment.tokenizer = &tokenizer;
  deployment.control = *recipe::resolve_control_tokens(tokenizer);
  deployment.begin_of_sequence = 0;
  deployment.vocab_size = tokenizer.id_bound();
  deployment.default_thinking = recipe::Thinking::kOff;
  return deployment;
}

FakeCluster::FakeCluster(const ClusterOptions& wanted) {
  tokenizer_ = nano_tokenizer();
  view_.version = 1;
  view_.model_id = kModelId;
  view_.artifact_digest_hex = kDigestHex;

  common::http::HttpServerOptions server;
  server.listen = "127.0.0.1:0";
  server.error_reply = [](int, std::string_view, std::string_view) {
    return common::http::ServerReply();
  };
  auto controller = common::http::HttpServer::start(controller_loop_, server);
  CHECK(controller.ok());
  controller_ = std::move(*controller);
  controller_->route("GET", "/api/v1/view",
                     [this](const common::http::ServerRequest&,
                            std::unique_ptr<common::http::ResponseWriter> writer) {
                       common::http::ServerReply reply;
                       reply.body = admin::to_json(view_);
                       writer->respond(std::move(reply));
                     });
  controller_->route("POST", "/api/v1/entrypoints/entrypoint-0/report",
                     [this](const common::http::ServerRequest& request,
                            std::unique_ptr<common::http::ResponseWriter> writer) {
                       {
                         const std::lock_guard lock(report_mutex_);
                         last_report_ = request.body;
                       }
                       common::http::ServerReply reply;
                       reply.status = 204;
                       writer->respond(std::move(reply));
                     });
  controller_->route("GET", "/api/v1/storage/map",
                     [store = wanted.store](const common::http::ServerRequest&,
                                            std::unique_ptr<common::http::ResponseWriter> writer) {
                       common::http::ServerReply reply;
                       reply.status = store == nullptr ? 404 : 200;
                       if (store != nullptr) reply.body = storage::encode_map(store->map());
                       writer->respond(std::move(reply));
                     });
  EntrypointOptions options;
  options.api_keys = wanted.api_keys;
  if (wanted.has_secret) {
    options.kv.emplace();
    options.kv->cluster_secret.fill(7);
    options.kv->entrypoint_id = "entrypoint-0";
    options.kv->check_timeout = wanted.check_timeout;
  }
  options.context_tokens = wanted.context_tokens;
  options.max_queue = wanted.max_queue;
  options.http.body_bytes = wanted.body_bytes;
  options.request_deadline = wanted.request_deadline;
  options.keep_alive = wanted.keep_alive;
  options.response_store = wanted.response_store;
  options.controller_url = "http://" + controller_->address();
  controller_thread_ = std::thread([this] { controller_loop_.run(); });

  options.listen = "127.0.0.1:0";
  options.entrypoint_id = "entrypoint-0";
  options.view_period = 20ms;
  options.report_period = 20ms;
  auto started = Entrypoint::start(loop_, Logger::to_stderr("entrypoint", LogLevel::kOff),
                                   registry_, nano_deployment(*tokenizer_), options);
  CHECK(started.ok());
  entrypoint_ = std::move(*started);
  thread_ = std::thread([this] { loop_.run(); });
}

FakeCluster::~FakeCluster() {
  loop_.stop();
  thread_.join();
  entrypoint_ = nullptr;
  workers_.clear();
  controller_loop_.stop();
  controller_thread_.join();
  controller_ = nullptr;
}

const std::string& FakeCluster::address() const { return entrypoint_->address(); }

std::string FakeCluster::last_report() const {
  const std::lock_guard lock(report_mutex_);
  return last_report_;
}

FakeWorker& FakeCluster::start_worker(const std::string& worker_id, admin::WorkerRole role) {
  auto& slot = workers_[worker_id];
  slot = std::make_unique<FakeWorker>(role, *tokenizer_);
  edit_view([&](admin::RoutingView& view) {
    auto it = view.workers.begin();
    while (it != view.workers.end() && it->worker_id < worker_id) ++it;
    if (it == view.workers.end() || it->worker_id != worker_id) {
      it = view.workers.insert(it, admin::ViewWorker{});
      it->worker_id = worker_id;
      it->instance_id = worker_id;
      it->node_id = "node-0";
      it->host_id = "host-0";
    }
    it->role = role;
    it->state = admin::WorkerState::kReady;
    ++it->incarnation;
    it->address = slot->address();
  });
  return *slot;
}

void FakeCluster::kill_worker(const std::string& worker_id) { workers_.erase(worker_id); }

void FakeCluster::edit_view(const std::function<void(admin::RoutingView&)>& edit) {
  std::promise<void> done;
  controller_loop_.post([&] {
    edit(view_);
    ++view_.version;
    done.set_value();
  });
  done.get_future().wait();
}

void FakeCluster::stop_controller() {
  std::promise<void> done;
  controller_loop_.post([&] {
    controller_ = nullptr;
    done.set_value();
  });
  done.get_future().wait();
}

void FakeCluster::start_workers() {
  start_worker("decode-0", admin::WorkerRole::kDecode);
  start_worker("prefill-0", admin::WorkerRole::kPrefill);
  CHECK(wait_until_ready());
}

bool FakeCluster::wait_until_ready() {
  common::http::HttpClient client;
  return eventually([&] {
    const auto response = client.get(url("/ready"));
    return response.ok() && response->status == 200;
  });
}

double FakeCluster::metric(const std::string& series) const {
  common::http::HttpClient client;
  const auto response = client.get(url("/metrics"));
  if (!response.ok()) return -1;
  const std::string key = "\n" + series + " ";
  const std::size_t at = response->body.find(key);
  return at == std::string::npos ? -1 : std::stod(response->body.substr(at + key.size()));
}

void FakeCluster::drain(std::function<void()> done) {
  loop_.post([this, done = std::move(done)] { entrypoint_->drain(done); });
}

void FakeCluster::set_api_keys(std::shared_ptr<const ApiKeys> keys) {
  std::promise<void> done;
  loop_.post([&] {
    entrypoint_->set_api_keys(std::move(keys));
    done.set_value();
  });
  done.get_future().wait();
}

}  // namespace millrace::api::entrypoint::test
