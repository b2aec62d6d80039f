#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "api/entrypoint/fake_cluster.h"
#include "common/http/http_client.h"
#include "common/json_fwd.h"

namespace millrace::api::entrypoint::test {

inline constexpr std::size_t kPromptTokens = 3;

/// A completion's body with a raw prompt of kPromptTokens ids: the output is then
/// text_behind(kPromptTokens, max_tokens).
std::string raw_request(int max_tokens, const std::string& more = "");

/// A server-sent event stream as it was received.
struct Received {
  int status = 0;
  std::string text;               ///< of all choices' texts
  std::vector<std::string> data;  ///< of the events
  std::string raw;
};

/// Reads until the end, or until `go_on` says that the client hangs up.
Received stream(
    const FakeCluster& cluster, const std::string& path, const std::string& body,
    const std::function<bool(const std::string& so_far)>& go_on = [](const std::string&) {
      return true;
    });

/// A whole answer; without a connection its status is 0.
common::http::HttpResponse post(const FakeCluster& cluster, const std::string& path,
                                const std::string& body);

/// The member "error" of a JSON body.
Json error_of(const common::http::HttpResponse& response);

}  // namespace millrace::api::entrypoint::test
