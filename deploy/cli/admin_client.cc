#include "deploy/cli/admin_client.h"

#include <chrono>
#include <string_view>
#include <utility>

#include "common/annotate.h"
#include "common/http/http_client.h"
#include "common/http/status_code.h"
#include "common/json.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::deploy::cli {
namespace {

using common::http::HttpClient;
using common::http::HttpResponse;

common::http::HttpClientOptions quick_calls() {
  common::http::HttpClientOptions options;
  options.timeout = std::chrono::milliseconds(5000);
  return options;
}

/// The message of a rest_error() body, else the body itself.
std::string message_in(const std::string& body) {
  const absl::StatusOr<Json> json = parse_json(body);
  if (json.ok() && json->is_object()) {
    const auto error = json->find("error");
    if (error != json->end()) {
      const absl::StatusOr<std::string> message = json_string(*error, "message");
      if (message.ok()) return *message;
    }
  }
  return body.substr(0, 300);
}

}  // namespace

struct AdminClient::Impl {
  explicit Impl(std::string controller) : address(std::move(controller)), http(quick_calls()) {}

  std::string url(std::string_view path) const { return str_cat("http://", address, path); }

  absl::StatusOr<std::string> body_of(const absl::StatusOr<HttpResponse>& response) const {
    if (!response.ok()) {
      return annotate(response.status(), str_cat("the controller at ", address));
    }
    if (response->status / 100 == 2) return response->body;
    return absl::Status(common::http::code_of_http_status(response->status),
                        str_cat("the controller says: ", message_in(response->body)));
  }

  absl::StatusOr<std::string> get(std::string_view path) { return body_of(http.get(url(path))); }
  absl::StatusOr<std::string> post(std::string_view path, std::string body) {
    return body_of(http.post(url(path), std::move(body)));
  }

  std::string address;
  HttpClient http;
};

AdminClient::AdminClient(std::string address) : impl_(std::make_unique<Impl>(std::move(address))) {}
AdminClient::AdminClient(AdminClient&&) noexcept = default;
AdminClient::~AdminClient() = default;

absl::Status AdminClient::put_desired(const api::admin::DesiredState& desired) {
  return impl_->body_of(impl_->http.put(impl_->url("/api/v1/desired"), to_json(desired))).status();
}

absl::StatusOr<api::admin::DesiredState> AdminClient::desired() {
  ASSIGN_OR_RETURN(const std::string body, impl_->get("/api/v1/desired"));
  return api::admin::parse_desired_state(body);
}

absl::StatusOr<std::vector<api::admin::NodeInfo>> AdminClient::nodes() {
  ASSIGN_OR_RETURN(const std::string body, impl_->get("/api/v1/nodes"));
  return api::admin::parse_nodes(body);
}

absl::StatusOr<std::vector<api::admin::InstanceInfo>> AdminClient::instances() {
  ASSIGN_OR_RETURN(const std::string body, impl_->get("/api/v1/instances"));
  return api::admin::parse_instances(body);
}

absl::StatusOr<api::admin::RoutingView> AdminClient::view() {
  ASSIGN_OR_RETURN(const std::string body, impl_->get("/api/v1/view"));
  return api::admin::parse_routing_view(body);
}

absl::StatusOr<api::admin::StorageStatus> AdminClient::storage() {
  ASSIGN_OR_RETURN(const std::string body, impl_->get("/api/v1/storage"));
  return api::admin::parse_storage_status(body);
}

absl::StatusOr<api::admin::StorageStatus> AdminClient::replace_target(
    const api::admin::StorageReplace& replace) {
  ASSIGN_OR_RETURN(const std::string body,
                   impl_->post("/api/v1/storage/replace", to_json(replace)));
  return api::admin::parse_storage_status(body);
}

absl::StatusOr<api::admin::StorageWish> AdminClient::scrub() {
  ASSIGN_OR_RETURN(const std::string body, impl_->post("/api/v1/storage/scrub", "{}"));
  return api::admin::parse_storage_wish(body);
}

absl::StatusOr<api::admin::StorageWish> AdminClient::evict(const api::admin::StorageEvict& evict) {
  ASSIGN_OR_RETURN(const std::string body, impl_->post("/api/v1/storage/evict", to_json(evict)));
  return api::admin::parse_storage_wish(body);
}

bool AdminClient::is_ready(const std::string& server_address) {
  const absl::StatusOr<HttpResponse> response =
      impl_->http.get(str_cat("http://", server_address, "/ready"));
  return response.ok() && response->status == 200;
}

}  // namespace millrace::deploy::cli
