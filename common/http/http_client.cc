#include "common/http/http_client.h"

#include <curl/curl.h>

#include <array>
#include <utility>

#include "common/check.h"
#include "common/str_cat.h"

namespace millrace::common::http {
namespace {

/// What the callbacks of one exchange fill in.
struct Exchange {
  CURL* curl = nullptr;
  HttpResponse response;
  std::size_t max_body_bytes = 0;
  const HttpClient::BodyReceiver* receive = nullptr;  ///< null = collect the body
  bool is_over_limit = false;
  bool is_stopped = false;
};

/// A list of "Name: value" lines that frees itself.
class HeaderLines {
 public:
  HeaderLines() = default;
  HeaderLines(const HeaderLines&) = delete;
  HeaderLines& operator=(const HeaderLines&) = delete;
  ~HeaderLines() { curl_slist_free_all(list_); }

  void add(const std::string& line) {
    curl_slist* longer = curl_slist_append(list_, line.c_str());
    CHECK(longer != nullptr, "out of memory");
    list_ = longer;
  }
  curl_slist* get() const { return list_; }

 private:
  curl_slist* list_ = nullptr;
};

std::size_t on_body(char* data, std::size_t size, std::size_t count, void* user) {
  auto& exchange = *static_cast<Exchange*>(user);
  const std::string_view piece(data, size * count);
  long status = 0;
  curl_easy_getinfo(exchange.curl, CURLINFO_RESPONSE_CODE, &status);
  if (exchange.receive != nullptr && status >= 200 && status < 300) {
    if ((*exchange.receive)(piece)) return piece.size();
    exchange.is_stopped = true;
    return 0;  // fewer bytes than given: libcurl ends the exchange and closes the connection
  }
  if (exchange.response.body.size() + piece.size() > exchange.max_body_bytes) {
    exchange.is_over_limit = true;
    return 0;
  }
  exchange.response.body.append(piece);
  return piece.size();
}

std::size_t on_header(char* data, std::size_t size, std::size_t count, void* user) {
  auto& exchange = *static_cast<Exchange*>(user);
  std::string_view line(data, size * count);
  const std::size_t taken = line.size();
  while (!line.empty() && (line.back() == '\r' || line.back() == '\n')) line.remove_suffix(1);
  if (line.starts_with("HTTP/")) {
    exchange.response.headers.clear();  // an interim answer (100 Continue) came before this one
    return taken;
  }
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos) return taken;
  HttpHeader header;
  for (char c : line.substr(0, colon)) {
    header.name.push_back(c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c);
  }
  std::string_view value = line.substr(colon + 1);
  while (!value.empty() && (value.front() == ' ' || value.front() == '\t')) value.remove_prefix(1);
  header.value = value;
  exchange.response.headers.push_back(std::move(header));
  return taken;
}

absl::Status check_method(std::string_view method) {
  for (std::string_view known : {"GET", "POST", "PUT", "DELETE"}) {
    if (method == known) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(str_cat("unknown HTTP method \"", method, "\""));
}

absl::Status status_of(CURLcode code, const Exchange& exchange, const HttpRequest& request,
                       std::string_view detail) {
  const std::string what = str_cat(request.method, " ", request.url, ": ");
  if (exchange.is_stopped) return absl::CancelledError(str_cat(what, "stopped by the receiver"));
  if (exchange.is_over_limit) {
    return absl::ResourceExhaustedError(
        str_cat(what, "the answer is larger than ", exchange.max_body_bytes, " bytes"));
  }
  const std::string message = str_cat(what, detail);
  switch (code) {
    case CURLE_OPERATION_TIMEDOUT:
      return absl::DeadlineExceededError(message);
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
      return absl::InvalidArgumentError(message);
    default:
      return absl::UnavailableError(message);
  }
}

/// libcurl's own start-up, once per process and before any handle; never undone, because other
/// objects with static lifetime may still use it.
void start_libcurl_once() {
  static const CURLcode code = curl_global_init(CURL_GLOBAL_DEFAULT);
  CHECK(code == CURLE_OK, "libcurl does not start");
}

}  // namespace

struct HttpClient::Impl {
  HttpClientOptions options;
  CURL* curl = nullptr;
  std::array<char, CURL_ERROR_SIZE> error_text{};

  ~Impl() { curl_easy_cleanup(curl); }

  template <typename Value>
  void set(CURLoption option, Value value) {
    // Options are fixed in this file; one that libcurl does not know would be a bug.
    CHECK(curl_easy_setopt(curl, option, value) == CURLE_OK);
  }

  void set_request(const HttpRequest& request, const HeaderLines& headers, Exchange& exchange);
  absl::StatusOr<HttpResponse> run(const HttpRequest& request, const BodyReceiver* receive);
};

void HttpClient::Impl::set_request(const HttpRequest& request, const HeaderLines& headers,
                                   Exchange& exchange) {
  curl_easy_reset(curl);  // keeps the open connections
  error_text[0] = '\0';
  set(CURLOPT_ERRORBUFFER, error_text.data());
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_PROXY, "");
  set(CURLOPT_URL, request.url.c_str());
  set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(options.connect_timeout.count()));
  set(CURLOPT_TIMEOUT_MS, static_cast<long>(options.timeout.count()));
  set(CURLOPT_HTTPHEADER, headers.get());
  set(CURLOPT_WRITEFUNCTION, &on_body);
  set(CURLOPT_WRITEDATA, static_cast<void*>(&exchange));
  set(CURLOPT_HEADERFUNCTION, &on_header);
  set(CURLOPT_HEADERDATA, static_cast<void*>(&exchange));
  if (request.method == "POST" || request.method == "PUT") {
    set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
    set(CURLOPT_POSTFIELDS, request.body.c_str());
  }
  if (request.method == "PUT" || request.method == "DELETE") {
    set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
  }
}

absl::StatusOr<HttpResponse> HttpClient::Impl::run(const HttpRequest& request,
                                                   const BodyReceiver* receive) {
  if (absl::Status status = check_method(request.method); !status.ok()) return status;
  if (!request.url.starts_with("http://") && !request.url.starts_with("https://")) {
    return absl::InvalidArgumentError(
        str_cat("\"", request.url, "\" must begin with http:// or https://"));
  }
  Exchange exchange;
  exchange.curl = curl;
  exchange.max_body_bytes = options.max_body_bytes;
  exchange.receive = receive;
  HeaderLines headers;
  headers.add("Expect:");  // no round trip before large bodies
  if (request.method == "POST" || request.method == "PUT") {
    headers.add(str_cat("Content-Type: ", request.content_type));
  }
  for (const HttpHeader& header : request.headers) {
    headers.add(str_cat(header.name, ": ", header.value));
  }
  set_request(request, headers, exchange);
  const CURLcode code = curl_easy_perform(curl);
  if (code != CURLE_OK) {
    const char* detail = error_text[0] != '\0' ? error_text.data() : curl_easy_strerror(code);
    return status_of(code, exchange, request, detail);
  }
  long status = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  exchange.response.status = static_cast<int>(status);
  return std::move(exchange.response);
}

std::string_view HttpResponse::header(std::string_view name) const {
  for (const HttpHeader& header : headers) {
    if (header.name == name) return header.value;
  }
  return {};
}

HttpClient::HttpClient(const HttpClientOptions& options) : impl_(std::make_unique<Impl>()) {
  start_libcurl_once();
  impl_->options = options;
  impl_->curl = curl_easy_init();
  CHECK(impl_->curl != nullptr, "out of memory");
}

HttpClient::HttpClient(HttpClient&&) noexcept = default;
HttpClient& HttpClient::operator=(HttpClient&&) noexcept = default;
HttpClient::~HttpClient() = default;

absl::StatusOr<HttpResponse> HttpClient::get(std::string_view url) {
  HttpRequest request;
  request.url = url;
  return send(request);
}

absl::StatusOr<HttpResponse> HttpClient::post(std::string_view url, std::string body) {
  HttpRequest request;
  request.method = "POST";
  request.url = url;
  request.body = std::move(body);
  return send(request);
}

absl::StatusOr<HttpResponse> HttpClient::put(std::string_view url, std::string body) {
  HttpRequest request;
  request.method = "PUT";
  request.url = url;
  request.body = std::move(body);
  return send(request);
}

absl::StatusOr<HttpResponse> HttpClient::del(std::string_view url) {
  HttpRequest request;
  request.method = "DELETE";
  request.url = url;
  return send(request);
}

absl::StatusOr<HttpResponse> HttpClient::send(const HttpRequest& request) {
  return impl_->run(request, nullptr);
}

absl::StatusOr<HttpResponse> HttpClient::stream(const HttpRequest& request,
                                                const BodyReceiver& receive) {
  return impl_->run(request, &receive);
}

}  // namespace millrace::common::http
