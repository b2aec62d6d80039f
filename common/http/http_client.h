#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace millrace::common::http {

struct HttpHeader {
  std::string name;
  std::string value;
};

/// An answer of any status code; a 4xx or 5xx is an answer, not an error.
struct HttpResponse {
  int status = 0;
  std::string body;
  std::vector<HttpHeader> headers;  ///< in order of arrival, names in lower case

  /// The value of the first header of that name (lower case); empty when there is none.
  std::string_view header(std::string_view name) const;
};

struct HttpRequest {
  std::string method = "GET";                     ///< GET, POST, PUT or DELETE
  std::string url;                                ///< http:// or https://
  std::string body;                               ///< sent for POST and PUT
  std::string content_type = "application/json";  ///< of a sent body
  std::vector<HttpHeader> headers;                ///< besides Content-Type
};

struct HttpClientOptions {
  std::chrono::milliseconds connect_timeout{2000};
  std::chrono::milliseconds timeout{10000};  ///< of a whole exchange; zero = none (streams)
  std::size_t max_body_bytes = 16u << 20;    ///< of a received body; streams are not limited
};

/// An HTTP client that keeps its connections open between calls (the one HTTP client of the code
/// base; libcurl behind it). Redirects are not followed and proxy variables of the environment are
/// ignored: every caller means exactly the address it names.
///
/// Threads: one call at a time per object; give each thread its own.
/// Errors: kUnavailable no connection, or it broke before the answer was complete;
/// kDeadlineExceeded a timeout; kInvalidArgument a malformed URL or unknown method;
/// kResourceExhausted a body over the limit; kCancelled a stream's receiver said stop.
class HttpClient {
 public:
  explicit HttpClient(const HttpClientOptions& options = {});
  HttpClient(HttpClient&&) noexcept;
  HttpClient& operator=(HttpClient&&) noexcept;
  ~HttpClient();

  absl::StatusOr<HttpResponse> get(std::string_view url);
  absl::StatusOr<HttpResponse> post(std::string_view url, std::string body);
  absl::StatusOr<HttpResponse> put(std::string_view url, std::string body);
  absl::StatusOr<HttpResponse> del(std::string_view url);
  absl::StatusOr<HttpResponse> send(const HttpRequest& request);

  /// Receives a piece of the body as it arrives; false = stop (the call returns kCancelled and the
  /// connection is closed, which the server sees as the client hanging up).
  using BodyReceiver = std::function<bool(std::string_view piece)>;

  /// Sends, and hands the body over in pieces while it arrives (server-sent events). Pieces of a
  /// 2xx answer go to `receive`; the body of any other status is collected in the response as with
  /// send(). Returns when the answer is complete.
  absl::StatusOr<HttpResponse> stream(const HttpRequest& request, const BodyReceiver& receive);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::common::http
