#include "common/http/rest_server.h"

#include <arpa/inet.h>
#include <cpprest/http_listener.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pplx/threadpool.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "common/http/status_code.h"
#include "common/json.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::common::http {
namespace {

namespace rest = web::http;

/// Threads for all REST servers of the process; handlers are short.
constexpr std::size_t kPoolThreads = 6;
constexpr int kFreePortAttempts = 16;
constexpr std::size_t kDiscardBytes = 64 << 10;

struct HostPort {
  std::string host;
  int port = 0;
};

absl::StatusOr<HostPort> parse_host_port(std::string_view text) {
  const absl::Status wrong = absl::InvalidArgumentError(
      str_cat("\"", text, "\" is no listen address; write host:port, for example 127.0.0.1:8080 ",
              "(port 0 takes any free one)"));
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return wrong;
  HostPort address;
  address.host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  if (port.empty() || port.size() > 5 || address.host.find(':') != std::string::npos) return wrong;
  for (char c : port) {
    if (c < '0' || c > '9') return wrong;
    address.port = address.port * 10 + (c - '0');
  }
  if (address.port > 65535) return wrong;
  return address;
}

/// Binds the address for a moment: tells a port in use from a foreign address, and finds a free
/// port for port 0, neither of which the listener library reports.
absl::StatusOr<int> probe_port(const HostPort& address) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (int code = getaddrinfo(address.host.c_str(), nullptr, &hints, &found); code != 0) {
    return absl::InvalidArgumentError(
        str_cat("cannot listen on \"", address.host, "\": ", gai_strerror(code)));
  }
  sockaddr_in wanted{};
  std::memcpy(&wanted, found->ai_addr, sizeof(wanted));
  freeaddrinfo(found);
  wanted.sin_port = htons(static_cast<std::uint16_t>(address.port));

  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::ResourceExhaustedError(str_cat("socket: ", std::strerror(errno)));
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in bound{};
  socklen_t size = sizeof(bound);
  // A second listener is told only by listen() when both sides asked to reuse the address.
  const bool is_free = bind(fd, reinterpret_cast<const sockaddr*>(&wanted), sizeof(wanted)) == 0 &&
                       listen(fd, 1) == 0 &&
                       getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) == 0;
  const int error = errno;
  close(fd);
  if (is_free) return ntohs(bound.sin_port);
  const std::string where = str_cat(address.host, ":", address.port);
  if (error == EADDRINUSE) {
    return absl::AlreadyExistsError(
        str_cat(where, " is in use by another program; stop it or choose another port"));
  }
  return absl::InvalidArgumentError(
      str_cat("cannot listen on ", where, ": ", std::strerror(error)));
}

/// Splits an encoded path at its slashes and decodes each part. nullopt = not valid encoding.
std::optional<std::vector<std::string>> path_segments(std::string_view path) {
  std::vector<std::string> segments;
  std::size_t begin = path.starts_with('/') ? 1 : 0;
  while (begin <= path.size()) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    try {
      segments.push_back(web::uri::decode(std::string(path.substr(begin, end - begin))));
    } catch (const std::exception&) {
      return std::nullopt;
    }
    begin = end + 1;
  }
  return segments;
}

bool is_parameter(std::string_view segment) {
  return segment.size() > 2 && segment.front() == '{' && segment.back() == '}';
}

/// Whether the pattern fits; fills in the parameters when it does.
bool match(const std::vector<std::string>& pattern, const std::vector<std::string>& path,
           std::map<std::string, std::string>& parameters) {
  if (pattern.size() != path.size()) return false;
  parameters.clear();
  for (std::size_t index = 0; index < pattern.size(); ++index) {
    if (is_parameter(pattern[index])) {
      parameters[pattern[index].substr(1, pattern[index].size() - 2)] = path[index];
    } else if (pattern[index] != path[index]) {
      return false;
    }
  }
  return true;
}

RestResponse plain_error(int status, std::string_view code, std::string_view message) {
  Json error;
  error["code"] = std::string(code);
  error["message"] = std::string(message);
  Json json;
  json["error"] = std::move(error);
  RestResponse response;
  response.status = status;
  response.body = dump_json(json);
  return response;
}

struct CompiledRoute {
  std::vector<std::string> pattern;
  RestRoute route;
};

/// Everything that a request in flight needs; outlives the listener while one runs.
struct Shared {
  std::vector<CompiledRoute> routes;
  std::size_t max_body_bytes = 0;

  std::mutex mutex;
  std::condition_variable idle;
  int in_flight = 0;  // guarded by mutex

  RestResponse answer(RestRequest& request) const;
};

RestResponse Shared::answer(RestRequest& request) const {
  const std::optional<std::vector<std::string>> path = path_segments(request.path);
  if (!path) return plain_error(400, "INVALID_ARGUMENT", "the path is not valid percent-encoding");
  std::string other_methods;
  for (const CompiledRoute& candidate : routes) {
    if (!match(candidate.pattern, *path, request.path_parameters)) continue;
    if (candidate.route.method == request.method) return candidate.route.handler(request);
    other_methods += str_cat(other_methods.empty() ? "" : ", ", candidate.route.method);
  }
  if (!other_methods.empty()) {
    return plain_error(405, "UNIMPLEMENTED",
                       str_cat(request.path, " takes ", other_methods, ", not ", request.method));
  }
  return plain_error(404, "NOT_FOUND", str_cat("there is no ", request.path));
}

/// Counts a request in flight for as long as it lives.
class InFlight {
 public:
  explicit InFlight(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {
    std::lock_guard lock(shared_->mutex);
    ++shared_->in_flight;
  }
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;
  ~InFlight() {
    std::lock_guard lock(shared_->mutex);
    if (--shared_->in_flight == 0) shared_->idle.notify_all();
  }
  const Shared& shared() const { return *shared_; }

 private:
  std::shared_ptr<Shared> shared_;
};

void reply(const rest::http_request& request, const RestResponse& answer) {
  rest::http_response response(static_cast<rest::status_code>(answer.status));
  response.set_body(answer.body, answer.content_type);
  request.reply(response).then([](const pplx::task<void>& done) {
    try {
      done.get();
    } catch (const std::exception&) {
      // The client went away before its answer; there is nobody left to tell.
    }
  });
}

/// The request line and headers as a value; the body follows later.
absl::StatusOr<RestRequest> request_head(const rest::http_request& request) {
  RestRequest head;
  head.method = request.method();
  try {
    head.path = request.relative_uri().path();
    for (const auto& [key, value] : web::uri::split_query(request.relative_uri().query())) {
      head.query[web::uri::decode(key)] = web::uri::decode(value);
    }
  } catch (const std::exception&) {
    return absl::InvalidArgumentError("the query is not valid percent-encoding");
  }
  return head;
}

/// Reads the rest of a refused body away. The library receives a whole body before it answers and
/// keeps what nobody reads: without this, a refused body of any size would sit in memory.
void discard_body(const rest::http_request& request,
                  const std::shared_ptr<std::vector<std::uint8_t>>& buffer) {
  request.body()
      .streambuf()
      .getn(buffer->data(), buffer->size())
      .then([request, buffer](const pplx::task<std::size_t>& count) {
        try {
          if (count.get() == 0) return;
        } catch (const std::exception&) {
          return;  // the connection broke
        }
        discard_body(request, buffer);
      });
}

/// An answer that needs no body to be given; nullopt = read the body.
std::optional<RestResponse> refuse_body(const rest::http_request& request,
                                        std::size_t max_body_bytes) {
  if (request.headers().has("Transfer-Encoding")) {
    return plain_error(411, "INVALID_ARGUMENT", "a body needs a Content-Length");
  }
  const auto length = request.headers().find("Content-Length");
  if (length == request.headers().end()) return std::nullopt;
  const std::string& text = length->second;
  const bool is_number = !text.empty() && text.find_first_not_of("0123456789") == text.npos;
  if (!is_number) return plain_error(400, "INVALID_ARGUMENT", "Content-Length is no number");
  if (text.size() <= 18 && std::stoull(text) <= max_body_bytes) return std::nullopt;
  return plain_error(413, "INVALID_ARGUMENT",
                     str_cat("the body is larger than ", max_body_bytes, " bytes"));
}

void on_request(const std::shared_ptr<Shared>& shared, const rest::http_request& request) {
  auto guard = std::make_shared<InFlight>(shared);
  if (std::optional<RestResponse> refusal = refuse_body(request, shared->max_body_bytes)) {
    reply(request, *refusal);
    return discard_body(request, std::make_shared<std::vector<std::uint8_t>>(kDiscardBytes));
  }
  absl::StatusOr<RestRequest> head = request_head(request);
  if (!head.ok()) return reply(request, rest_error(head.status()));
  rest::http_request(request).extract_vector().then(
      [guard, request,
       head = std::move(*head)](const pplx::task<std::vector<unsigned char>>& body) mutable {
        try {
          const std::vector<unsigned char> bytes = body.get();
          head.body.assign(bytes.begin(), bytes.end());
        } catch (const std::exception&) {
          return reply(request, plain_error(400, "INVALID_ARGUMENT", "the body did not arrive"));
        }
        reply(request, guard->shared().answer(head));
      });
}

void size_pool_once() {
  static const bool is_done = [] {
    try {
      crossplat::threadpool::initialize_with_threads(kPoolThreads);
    } catch (const std::exception&) {
      // The pool runs already: its size is then what its first user chose.
    }
    return true;
  }();
  static_cast<void>(is_done);
}

}  // namespace

RestResponse rest_error(const absl::Status& status) {
  return plain_error(http_status_of(status.code()), absl::StatusCodeToString(status.code()),
                     message_of(status));
}

struct RestServer::Impl {
  std::shared_ptr<Shared> shared = std::make_shared<Shared>();
  std::unique_ptr<rest::experimental::listener::http_listener> listener;
  std::string address;

  absl::Status open(const HostPort& wanted, int port);
};

absl::Status RestServer::Impl::open(const HostPort& wanted, int port) {
  address = str_cat(wanted.host, ":", port);
  try {
    listener = std::make_unique<rest::experimental::listener::http_listener>(
        web::uri(str_cat("http://", address, "/")));
    listener->support(
        [shared = shared](const rest::http_request& request) { on_request(shared, request); });
    listener->open().get();
    return absl::OkStatus();
  } catch (const std::exception& error) {
    listener.reset();
    return absl::UnavailableError(str_cat("cannot listen on ", address, ": ", error.what()));
  }
}

RestServer::RestServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RestServer::~RestServer() { stop(); }

absl::StatusOr<std::unique_ptr<RestServer>> RestServer::start(const RestServerOptions& options,
                                                              std::vector<RestRoute> routes) {
  ASSIGN_OR_RETURN(const HostPort wanted, parse_host_port(options.listen));
  size_pool_once();
  auto impl = std::make_unique<Impl>();
  impl->shared->max_body_bytes = options.max_body_bytes;
  for (RestRoute& route : routes) {
    impl->shared->routes.push_back({*path_segments(route.pattern), std::move(route)});
  }
  // Another program may take a free port between the probe and the listener: try a few.
  const int attempts = wanted.port == 0 ? kFreePortAttempts : 1;
  absl::Status status;
  for (int attempt = 0; attempt < attempts; ++attempt) {
    ASSIGN_OR_RETURN(const int port, probe_port(wanted));
    status = impl->open(wanted, port);
    if (status.ok()) return std::unique_ptr<RestServer>(new RestServer(std::move(impl)));
  }
  return status;
}

const std::string& RestServer::address() const { return impl_->address; }

void RestServer::stop() {
  if (impl_->listener == nullptr) return;
  try {
    impl_->listener->close().get();
  } catch (const std::exception&) {
    // It was not open any more, which is what was wanted.
  }
  std::unique_lock lock(impl_->shared->mutex);
  impl_->shared->idle.wait(lock, [this] { return impl_->shared->in_flight == 0; });
  impl_->listener.reset();
}

}  // namespace millrace::common::http
