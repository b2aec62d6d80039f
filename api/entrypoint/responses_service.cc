#include "api/entrypoint/responses_service.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "api/entrypoint/response_query.h"
#include "api/recipe/json_text.h"
#include "api/recipe/request_error.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::entrypoint {
namespace {

using common::http::ServerReply;
using common::http::ServerRequest;

constexpr std::string_view kRoot = "/v1/responses/";

std::int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

/// "{id}/{what}" of a path below the root.
struct Target {
  std::string id;
  std::string_view what;
};

Target target_of(std::string_view path) {
  path.remove_prefix(std::min(path.size(), kRoot.size()));
  const std::size_t slash = std::min(path.find('/'), path.size());
  return {std::string(path.substr(0, slash)), path.substr(slash)};
}

absl::Status no_such_path(const ServerRequest& request) {
  return absl::NotFoundError(str_cat("no such path: ", request.method, " ", request.path));
}

absl::Status not_found(const std::string& id) {
  return absl::NotFoundError(str_cat("Response with id '", id.substr(0, 160), "' not found."));
}

void reply_json(const Client& client, std::string body) {
  ServerReply reply;
  reply.body = std::move(body);
  client.respond(std::move(reply));
}

/// Two JSON lists as one.
std::string joined(std::string_view first, std::string_view second) {
  if (first == "[]") return std::string(second);
  if (second == "[]") return std::string(first);
  return str_cat(first.substr(0, first.size() - 1), ",", second.substr(1));
}

/// What a request for the next answer continues.
absl::StatusOr<std::string> items_to_continue(const StoredResponse& stored) {
  const auto status = recipe::string_value(recipe::raw_member(stored.response, "status"));
  if (status != "completed" && status != "incomplete") {
    return recipe::field_error("previous_response_id",
                               str_cat("the response '", stored.id, "' is ",
                                       status.value_or("unknown"), " and cannot be continued"));
  }
  return joined(stored.input_items, stored.output_items);
}

absl::Status as_previous(const absl::Status& status) {
  if (status.code() != absl::StatusCode::kNotFound) return status;
  return recipe::not_found_error("previous_response_id",
                                 str_cat("Previous response: ", message_of(status)),
                                 "previous_response_not_found");
}

}  // namespace

ResponsesService::ResponsesService(Host host, Logger log, Registry& registry,
                                   std::unique_ptr<ResponseStore> store)
    : host_(std::move(host)),
      log_(std::move(log)),
      failures_(registry.counter("millrace_response_store_failures_total",
                                 "Operations of the response store that failed",
                                 {{"operation", {"read", "write", "delete"}}})),
      store_(std::move(store)) {}

ResponsesService::~ResponsesService() = default;

ResponsesService::Work ResponsesService::decode(const std::string& request_id,
                                                const std::string& body, const Caller& caller) {
  const std::string previous = recipe::previous_response_id(body);
  const auto arrived = std::make_shared<const Arrived>(Arrived{request_id, body, caller});
  if (previous.empty()) return prepare(*arrived, std::nullopt);
  return [this, previous, arrived] { continue_response(previous, arrived); };
}

/// On the decoding thread.
ResponsesService::Work ResponsesService::prepare(
    const Arrived& arrived, std::optional<std::string_view> earlier_items) const {
  // std::function wants a copyable value.
  auto prepared = std::make_shared<absl::StatusOr<recipe::PreparedResponse>>(
      recipe::prepare_response(arrived.body, host_.deployment, {arrived.request_id, unix_seconds()},
                               {.owner = host_.entrypoint_id,
                                .earlier_items = earlier_items,
                                .now_seconds = unix_seconds}));
  KvService::Blocks blocks;
  if (prepared->ok()) blocks = host_.name_blocks(arrived.caller, (*prepared)->request);
  return [this, request_id = arrived.request_id, prepared, blocks] {
    host_.admit(request_id, prepared, blocks);
  };
}

/// On the loop.
void ResponsesService::refuse(const std::string& request_id, const absl::Status& status) const {
  host_.admit(request_id,
              std::make_shared<absl::StatusOr<recipe::PreparedResponse>>(as_previous(status)),
              nullptr);
}

/// From the loop to the store, to the decoding thread and back.
void ResponsesService::continue_response(const std::string& previous_id,
                                         const std::shared_ptr<const Arrived>& arrived) {
  absl::Status status = check_owner(previous_id);
  // The store answers in turn: what it has been given, it will find.
  const ResponseName previous{previous_id, arrived->caller.account};
  const ResponseJob* job = find(previous);
  if (status.ok() && job != nullptr && !job->is_generated()) {
    status = recipe::field_error("previous_response_id",
                                 str_cat("the response '", previous_id, "' is still in progress"));
  }
  if (!status.ok()) {
    refuse(arrived->request_id, status);
    return;
  }
  const auto fail = [this, arrived](const absl::Status& error) {
    host_.loop.post([this, arrived, error] { refuse(arrived->request_id, error); });
  };
  store_->get(previous, [this, arrived, fail](const absl::StatusOr<StoredResponse>& stored) {
    note(stored.status(), "read");
    const absl::StatusOr<std::string> items =
        stored.ok() ? items_to_continue(*stored) : absl::StatusOr<std::string>(stored.status());
    if (!items.ok()) {
      fail(items.status());
      return;
    }
    Work work = [this, arrived, items = *items] { host_.loop.post(prepare(*arrived, items)); };
    if (!host_.decode_later(std::move(work))) {
      fail(absl::ResourceExhaustedError("too many requests arrive at once"));
    }
  });
}

recipe::PreparedRequest ResponsesService::open(recipe::PreparedResponse prepared,
                                               const std::string& account, Client& client) {
  const std::string request_id = client.request_id;
  recipe::PreparedRequest request = std::move(prepared.request);
  const ResponseJob::Hooks hooks{
      .store = [this,
                request_id](StoredResponse response) { store(request_id, std::move(response)); },
      .over =
          [this, request_id] {
            host_.loop.post([this, request_id] {
              jobs_.erase(request_id);
              host_.on_change();
            });
          }};
  Client reader{client.request_id, client.errors, std::move(client.writer)};
  auto job = std::make_unique<ResponseJob>(std::move(prepared), account, std::move(reader), hooks);
  client.writer = job->make_writer();
  request.encoder = job->make_encoder();
  request.is_streamed = job->is_streamed_inside();
  jobs_[request_id] = std::move(job);
  return request;
}

void ResponsesService::admitted(const std::string& request_id) {
  const auto job = jobs_.find(request_id);
  if (job != jobs_.end()) job->second->admitted();
}

void ResponsesService::store(const std::string& request_id, StoredResponse response) {
  // Posted, so that a store that refuses at once does not call back from within.
  store_->put(std::move(response), [this, request_id](const absl::Status& status) {
    note(status, "write");
    host_.loop.post([this, request_id, status] {
      const auto job = jobs_.find(request_id);
      if (job != jobs_.end()) job->second->stored(status);
    });
  });
}

/// On any thread.
void ResponsesService::note(const absl::Status& status, std::string_view operation) const {
  if (status.ok() || status.code() == absl::StatusCode::kNotFound) return;
  failures_.with({operation}).add();
  log_.error("response_store_failed", {{"operation", operation}, {"status", status.ToString()}});
}

absl::Status ResponsesService::check_owner(const std::string& response_id) const {
  const auto owner = recipe::owner_of_response(response_id);
  if (!owner) return not_found(response_id);
  if (*owner == host_.entrypoint_id) return absl::OkStatus();
  return absl::NotFoundError(str_cat("Response with id '", response_id.substr(0, 160),
                                     "' belongs to the entrypoint '", owner->substr(0, 64),
                                     "', this is '", host_.entrypoint_id, "': ask that one."));
}

ResponseJob* ResponsesService::find(const ResponseName& name) {
  const auto job = std::find_if(jobs_.begin(), jobs_.end(), [&](const auto& entry) {
    return entry.second->response_id() == name.id && entry.second->account() == name.account &&
           entry.second->is_stored();
  });
  return job == jobs_.end() ? nullptr : job->second.get();
}

void ResponsesService::get(const ServerRequest& request, const std::string& account,
                           Client client) {
  const Target target = target_of(request.path);
  const ResponseName name{target.id, account};
  if (const absl::Status status = check_owner(target.id); !status.ok()) {
    client.refuse(status);
    return;
  }
  ResponseJob* job = find(name);
  if (target.what == "/input_items") {
    get_items(job, name, request.query, std::move(client));
    return;
  }
  if (!target.what.empty()) {
    client.refuse(no_such_path(request));
    return;
  }
  const auto query = parse_response_query(request.query);
  if (!query.ok()) {
    client.refuse(query.status());
  } else if (query->is_streamed) {
    get_stream(job, name, query->starting_after, std::move(client));
  } else if (job != nullptr) {
    reply_json(client, job->response());
  } else {
    read_stored(name, std::move(client),
                [](const StoredResponse& stored) -> Answer { return stored.response; });
  }
}

void ResponsesService::get_items(ResponseJob* job, const ResponseName& name, std::string_view query,
                                 Client client) {
  const auto page = parse_items_query(query);
  if (!page.ok()) {
    client.refuse(page.status());
    return;
  }
  if (job == nullptr) {
    read_stored(name, std::move(client), [page = *page](const StoredResponse& stored) {
      return recipe::items_page(stored.input_items, page);
    });
    return;
  }
  const std::uint64_t ask = park(std::move(client));
  const bool is_queued = host_.decode_later([this, ask, page = *page, items = job->input_items()] {
    host_.loop.post([this, ask, body = recipe::items_page(items, page)] { answer(ask, body); });
  });
  if (!is_queued) answer(ask, absl::ResourceExhaustedError("too many requests arrive at once"));
}

void ResponsesService::get_stream(ResponseJob* job, const ResponseName& name, std::int64_t after,
                                  Client client) {
  if (job != nullptr) {
    if (const absl::Status status = job->subscribe(client, after); !status.ok()) {
      client.refuse(status);
    }
    return;
  }
  const std::uint64_t ask = park(std::move(client));
  store_->get(name, [this, ask, after](const absl::StatusOr<StoredResponse>& stored) {
    note(stored.status(), "read");
    absl::Status status = stored.status();
    std::string events;
    if (status.ok() && stored->events.empty()) {
      status =
          recipe::field_error("stream",
                              "only a response that was created with `background` and "
                              "`stream` can be streamed again, as long as its events are kept");
    } else if (status.ok()) {
      events = events_behind(stored->events, after);
    }
    host_.loop.post([this, ask, status, events] {
      const auto it = asks_.find(ask);
      if (it == asks_.end()) return;
      const Client reader = std::move(it->second);
      asks_.erase(it);
      if (!status.ok()) {
        reader.refuse(status);
        return;
      }
      reader.writer->begin_stream(event_stream_head(reader.request_id));
      if (!events.empty()) reader.writer->write(events);
      reader.writer->finish_stream();
    });
  });
}

void ResponsesService::post(const ServerRequest& request, const std::string& account,
                            Client client) {
  const Target target = target_of(request.path);
  if (target.what != "/cancel") {
    client.refuse(no_such_path(request));
    return;
  }
  if (const absl::Status status = check_owner(target.id); !status.ok()) {
    client.refuse(status);
    return;
  }
  const ResponseName name{target.id, account};
  if (ResponseJob* job = find(name)) {
    const absl::Status status = job->cancel();
    status.ok() ? reply_json(client, job->response()) : client.refuse(status);
    return;
  }
  // One that is over stays as it is.
  read_stored(name, std::move(client), [](const StoredResponse& stored) -> Answer {
    if (recipe::raw_member(stored.response, "background") == "true") return stored.response;
    return recipe::field_error("response_id", "Cannot cancel a synchronous response.");
  });
}

void ResponsesService::erase(const ServerRequest& request, const std::string& account,
                             Client client) {
  const Target target = target_of(request.path);
  absl::Status status = check_owner(target.id);
  if (!target.what.empty()) status = no_such_path(request);
  if (!status.ok()) {
    client.refuse(status);
    return;
  }
  const std::string body =
      str_cat(R"({"id":")", target.id, R"(","object":"response","deleted":true})");
  const ResponseName name{target.id, account};
  ResponseJob* job = find(name);
  const std::uint64_t ask = park(std::move(client));
  const bool is_known = job != nullptr;
  if (is_known) job->forget();
  // Behind a response that is just being stored.
  store_->erase(name, [this, ask, body, is_known](const absl::Status& erased) {
    note(erased, "delete");
    const bool is_gone = erased.ok() || (is_known && absl::IsNotFound(erased));
    host_.loop.post([this, ask, answer_body = is_gone ? Answer(body) : Answer(erased)] {
      answer(ask, answer_body);
    });
  });
}

void ResponsesService::read_stored(const ResponseName& name, Client client, Read read) {
  const std::uint64_t ask = park(std::move(client));
  store_->get(
      name, [this, ask, read = std::move(read)](const absl::StatusOr<StoredResponse>& stored) {
        note(stored.status(), "read");
        host_.loop.post([this, ask, body = stored.ok() ? read(*stored) : Answer(stored.status())] {
          answer(ask, body);
        });
      });
}

/// Keeps a client on the loop while another thread works for it.
std::uint64_t ResponsesService::park(Client client) {
  const std::uint64_t ask = ++last_ask_;
  client.writer->on_close([this, ask] { asks_.erase(ask); });
  asks_.emplace(ask, std::move(client));
  return ask;
}

void ResponsesService::answer(std::uint64_t ask, const Answer& body) {
  const auto it = asks_.find(ask);
  if (it == asks_.end()) return;
  const Client client = std::move(it->second);
  asks_.erase(it);
  body.ok() ? reply_json(client, *body) : client.refuse(body.status());
}

}  // namespace millrace::api::entrypoint
