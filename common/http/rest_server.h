#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace millrace::common::http {

struct RestRequest {
  std::string method;
  std::string path;
  std::map<std::string, std::string> path_parameters;  ///< by the name in the pattern, decoded
  std::map<std::string, std::string> query;            ///< decoded
  std::string body;
};

struct RestResponse {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
};

/// Runs on a thread of the server's pool, several at a time. Must not throw or block for long.
using RestHandler = std::function<RestResponse(const RestRequest&)>;

struct RestRoute {
  std::string method;   ///< "GET", "POST", "PUT" or "DELETE"
  std::string pattern;  ///< "/api/v1/nodes/{id}/heartbeat": a {name} matches one segment
  RestHandler handler;
};

struct RestServerOptions {
  std::string listen;                     ///< host:port; port 0 = any free port
  std::size_t max_body_bytes = 4u << 20;  ///< over it: 413
};

/// `{"error":{"code":"INVALID_ARGUMENT","message":"..."}}` with the status of the code.
RestResponse rest_error(const absl::Status& status);

/// A REST listener for control traffic (cpprestsdk behind it). Answers 404 for an unknown path, 405
/// for a known path with another method, 411 for a body of unstated length, 413 for one over the
/// limit, all in the JSON form of rest_error().
class RestServer {
 public:
  /// Listens at once. kAlreadyExists when the port is in use, kInvalidArgument for a malformed
  /// address, with a message that says what to do.
  static absl::StatusOr<std::unique_ptr<RestServer>> start(const RestServerOptions& options,
                                                           std::vector<RestRoute> routes);
  ~RestServer();

  /// host:port as actually bound.
  const std::string& address() const;

  /// Stops accepting and waits for running handlers. Idempotent.
  void stop();

 private:
  struct Impl;
  explicit RestServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::common::http
