#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/types.h"

namespace millrace::deploy::cli {

struct ChatMessage {
  std::string role = {};
  std::string content = {};
};

struct ChatRequest {
  std::string model = {};
  std::vector<ChatMessage> messages = {};
  std::optional<bool> is_thinking = {};  ///< absent: the server's default
  std::optional<int> max_tokens = {};
  std::optional<double> temperature = {};
  std::optional<std::int64_t> seed = {};
};

/// A raw continuation of text or of token ids.
struct TextRequest {
  std::string model = {};
  std::string prompt = {};
  std::optional<std::vector<TokenId>> prompt_ids = {};  ///< instead of prompt
  std::optional<int> max_tokens = {};
  std::optional<double> temperature = {};
  std::optional<std::int64_t> seed = {};
  bool ignore_eos = false;  ///< runs to max_tokens exactly
  bool echo_ids = false;    ///< the ids of the continuation come with its text
};

/// A piece of an answer.
struct Delta {
  std::string reasoning = {};
  std::string text = {};
  std::vector<TokenId> ids = {};
};

/// A whole answer.
struct Completion {
  std::string reasoning = {};
  std::string text = {};
  std::vector<TokenId> ids = {};
  std::string finish_reason = {};
  int prompt_tokens = 0;
  int completion_tokens = 0;
};

struct ServedModel {
  std::string id = {};
  std::optional<int> max_model_len = {};  ///< prompt and answer together, when the server says so
};

/// Gets an answer's pieces while they come; false ends the request (kCancelled).
using DeltaReceiver = std::function<bool(const Delta& delta)>;

/// Speaks OpenAI's completion protocols with an entrypoint, always streaming.
///
/// Threads: one call at a time per object.
/// Errors: those of HttpClient, and for an HTTP error status its code with the server's message.
class CompletionClient {
 public:
  /// `base_url` is scheme, host and port. No answer may take longer than `timeout`; zero: no limit.
  explicit CompletionClient(std::string base_url,
                            std::chrono::milliseconds timeout = std::chrono::milliseconds(0));
  CompletionClient(CompletionClient&&) noexcept;
  ~CompletionClient();

  /// The first model of GET /v1/models.
  absl::StatusOr<ServedModel> model();

  absl::StatusOr<Completion> chat(const ChatRequest& request, const DeltaReceiver& receive);
  absl::StatusOr<Completion> complete(const TextRequest& request, const DeltaReceiver& receive);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::deploy::cli
