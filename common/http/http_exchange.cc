#include "common/http/http_exchange.h"

#include <array>
#include <charconv>
#include <utility>

#include "common/check.h"
#include "common/str_cat.h"

namespace millrace::common::http {

std::string_view reason_phrase(int status) {
  struct Phrase {
    int status;
    std::string_view text;
  };
  static constexpr std::array kPhrases = {
      Phrase{200, "OK"},
      Phrase{201, "Created"},
      Phrase{204, "No Content"},
      Phrase{400, "Bad Request"},
      Phrase{401, "Unauthorized"},
      Phrase{403, "Forbidden"},
      Phrase{404, "Not Found"},
      Phrase{405, "Method Not Allowed"},
      Phrase{408, "Request Timeout"},
      Phrase{409, "Conflict"},
      Phrase{413, "Payload Too Large"},
      Phrase{429, "Too Many Requests"},
      Phrase{431, "Request Header Fields Too Large"},
      Phrase{499, "Client Closed Request"},
      Phrase{500, "Internal Server Error"},
      Phrase{501, "Not Implemented"},
      Phrase{503, "Service Unavailable"},
      Phrase{504, "Gateway Timeout"},
      Phrase{529, "Overloaded"},
  };
  for (const Phrase& phrase : kPhrases) {
    if (phrase.status == status) return phrase.text;
  }
  return "Unknown";
}

std::string response_head(const ServerReply& reply, std::string_view framing, bool keep_alive) {
  std::string head = str_cat("HTTP/1.1 ", reply.status, " ", reason_phrase(reply.status), "\r\n");
  if (!reply.content_type.empty()) head += str_cat("Content-Type: ", reply.content_type, "\r\n");
  for (const auto& [name, value] : reply.headers) head += str_cat(name, ": ", value, "\r\n");
  if (!framing.empty()) head += str_cat(framing, "\r\n");
  head += keep_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  return head;
}

HttpExchange::HttpExchange(const Options& options, std::function<void()> wake)
    : options_(options), wake_(std::move(wake)) {}

void HttpExchange::forbid_keep_alive() {
  if (state_ == State::kWaiting) options_.keep_alive = false;
}

void HttpExchange::report_close() {
  // Swapped out first: the callback may destroy the writer, and with it this function object.
  const std::function<void()> callback = std::exchange(on_close_, nullptr);
  if (callback && !is_complete()) callback();
}

void HttpExchange::queue(std::initializer_list<std::string_view> pieces) {
  if (is_overflowed_) return;
  for (const std::string_view piece : pieces) outgoing_.append(piece);
  // A whole answer may be larger than the bound: it existed in memory already.
  if (state_ == State::kStreaming && outgoing_.size() > options_.queued_write_bytes) {
    is_overflowed_ = true;
    outgoing_.clear();
  }
  wake_();
}

void HttpExchange::respond(const ServerReply& reply) {
  CHECK(state_ == State::kWaiting, "an answer begins once");
  state_ = State::kComplete;
  const std::string head =
      response_head(reply, str_cat("Content-Length: ", reply.body.size()), options_.keep_alive);
  queue({head, options_.is_head_request ? std::string_view() : std::string_view(reply.body)});
}

void HttpExchange::begin_stream(const ServerReply& head) {
  CHECK(state_ == State::kWaiting, "an answer begins once");
  CHECK(head.body.empty());
  state_ = State::kStreaming;
  if (options_.is_http_1_0) options_.keep_alive = false;
  queue({response_head(head, options_.is_http_1_0 ? "" : "Transfer-Encoding: chunked",
                       options_.keep_alive)});
}

void HttpExchange::write(std::string_view bytes) {
  CHECK(state_ == State::kStreaming);
  if (bytes.empty() || options_.is_head_request) return;
  if (options_.is_http_1_0) {
    queue({bytes});
    return;
  }
  std::array<char, 16> size{};
  const auto end = std::to_chars(size.data(), size.data() + size.size(), bytes.size(), 16).ptr;
  const std::string_view hex(size.data(), static_cast<std::size_t>(end - size.data()));
  queue({hex, "\r\n", bytes, "\r\n"});
}

void HttpExchange::finish_stream() {
  CHECK(state_ == State::kStreaming);
  if (!options_.is_http_1_0 && !options_.is_head_request) queue({"0\r\n\r\n"});
  state_ = State::kComplete;
  wake_();
}

/// What the handler holds.
class HttpExchange::Writer final : public ResponseWriter {
 public:
  explicit Writer(std::shared_ptr<HttpExchange> exchange) : exchange_(std::move(exchange)) {}

  ~Writer() override {
    exchange_->on_close_ = nullptr;
    if (exchange_->is_complete()) return;
    exchange_->is_abandoned_ = true;
    exchange_->wake_();
  }

  void respond(ServerReply reply) override { exchange_->respond(reply); }
  void begin_stream(ServerReply head) override { exchange_->begin_stream(head); }
  void write(std::string_view bytes) override { exchange_->write(bytes); }
  void finish_stream() override { exchange_->finish_stream(); }
  void on_close(std::function<void()> callback) override {
    exchange_->on_close_ = std::move(callback);
  }

 private:
  std::shared_ptr<HttpExchange> exchange_;
};

std::unique_ptr<ResponseWriter> HttpExchange::make_writer(std::shared_ptr<HttpExchange> exchange) {
  return std::make_unique<Writer>(std::move(exchange));
}

}  // namespace millrace::common::http
