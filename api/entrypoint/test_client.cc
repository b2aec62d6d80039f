#include "api/entrypoint/test_client.h"

#include <chrono>

#include "common/json.h"
#include "common/str_cat.h"

namespace millrace::api::entrypoint::test {

using namespace std::chrono_literals;
using common::http::HttpClient;
using common::http::HttpResponse;

std::string raw_request(int max_tokens, const std::string& more) {
  return str_cat(R"({"model":"nano","prompt":[5,6,7],"max_tokens":)", max_tokens, more, "}");
}

Received stream(const FakeCluster& cluster, const std::string& path, const std::string& body,
                const std::function<bool(const std::string& so_far)>& go_on) {
  HttpClient client({.timeout = 60s});
  common::http::HttpRequest request;
  request.method = "POST";
  request.url = cluster.url(path);
  request.body = body;
  Received received;
  const auto response = client.stream(request, [&](std::string_view piece) {
    received.raw.append(piece);
    return go_on(received.raw);
  });
  if (response.ok()) received.status = response->status;
  for (std::size_t at = 0; (at = received.raw.find("data: ", at)) != std::string::npos;) {
    const std::size_t end = received.raw.find("\n\n", at);
    received.data.push_back(received.raw.substr(at + 6, end - at - 6));
    at = end;
    const auto json = parse_json(received.data.back());
    if (!json.ok() || !json->contains("choices") || (*json)["choices"].empty()) continue;
    const Json& choice = (*json)["choices"][0];
    if (choice.contains("text")) received.text += choice["text"].get<std::string>();
    if (choice.contains("delta") && choice["delta"].contains("content")) {
      received.text += choice["delta"]["content"].get<std::string>();
    }
  }
  return received;
}

HttpResponse post(const FakeCluster& cluster, const std::string& path, const std::string& body) {
  HttpClient client({.timeout = 60s});
  const auto response = client.post(cluster.url(path), body);
  return response.ok() ? *response : HttpResponse{};
}

Json error_of(const HttpResponse& response) {
  const auto json = parse_json(response.body);
  return json.ok() && json->contains("error") ? (*json)["error"] : Json();
}

}  // namespace millrace::api::entrypoint::test
