#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "api/recipe/conversation.h"
#include "api/recipe/deployment.h"
#include "api/recipe/output.h"
#include "api/recipe/output_parser.h"
#include "api/recipe/request_error.h"
#include "common/types.h"

namespace millrace::api::recipe {

/// Writes the answer to one request in its protocol. Either begin(), delta() any number of times
/// and then finish() or fail(), each giving bytes of an event stream (possibly none); or complete()
/// once.
///
/// A request for several choices gets their deltas as they come, each with its index; every choice
/// but the one that ends last is ended by end_choice().
class ResponseEncoder {
 public:
  virtual ~ResponseEncoder() = default;

  /// Before begin(), as far as it is known then: prompt tokens that nobody had to compute.
  virtual void set_cached_tokens(std::uint32_t /*tokens*/) {}
  virtual std::string begin() = 0;
  virtual std::string delta(const OutputDelta& delta) = 0;
  /// Protocols with a single choice never see it.
  virtual std::string end_choice(const Ending& /*ending*/) { return {}; }
  virtual std::string finish(const Ending& ending, const Usage& usage) = 0;
  /// What is sent when a stream has been silent for long, once it has begun: here, a comment.
  virtual std::string keep_alive() { return ": keep-alive\n\n"; }
  /// An error after the stream began; the connection is closed after it.
  virtual std::string fail(const ErrorDetails& error) = 0;

  /// The whole answer as one body; choices by index, at least one.
  virtual std::string complete(const std::vector<Choice>& choices, const Usage& usage) = 0;
};

/// A request of any protocol, decoded, rendered and encoded: what the core of the entrypoint
/// serves.
struct PreparedRequest {
  std::vector<TokenId> prompt;
  /// Of a batch: the prompts behind the first, each answered by sampling.choices choices of its
  /// own; indices count through, prompt by prompt.
  std::vector<std::vector<TokenId>> further_prompts;
  std::string_view prompt_field;  ///< the field to name when the prompt is too long
  Sampling sampling;
  ParseOptions parsing;
  std::string user_id;     ///< whom the caller serves, as the protocol tells; empty: not told
  bool has_tools = false;  ///< the model may call something: an agent's request, more likely
  bool is_streamed = false;
  std::unique_ptr<ResponseEncoder> encoder;

  std::size_t choice_count() const { return (1 + further_prompts.size()) * sampling.choices; }
};

/// A protocol: the body of a request in, a prepared request out. Pure; safe on any thread.
/// Errors: kInvalidArgument and kNotFound with request_error payloads.
using PrepareFunction = absl::StatusOr<PreparedRequest> (*)(std::string_view body,
                                                            const Deployment& deployment,
                                                            const AnswerIdentity& identity);

/// POST /v1/chat/completions
absl::StatusOr<PreparedRequest> prepare_chat(std::string_view body, const Deployment& deployment,
                                             const AnswerIdentity& identity);

/// POST /v1/completions
absl::StatusOr<PreparedRequest> prepare_completion(std::string_view body,
                                                   const Deployment& deployment,
                                                   const AnswerIdentity& identity);

/// POST /v1/messages
absl::StatusOr<PreparedRequest> prepare_messages(std::string_view body,
                                                 const Deployment& deployment,
                                                 const AnswerIdentity& identity);

/// POST /v1/responses, without a store: `previous_response_id` is refused. responses_encoder.h has
/// the form that an entrypoint uses.
absl::StatusOr<PreparedRequest> prepare_responses(std::string_view body,
                                                  const Deployment& deployment,
                                                  const AnswerIdentity& identity);

/// POST /v1/messages/count_tokens: the body of the answer. Errors as above.
absl::StatusOr<std::string> count_messages_tokens(std::string_view body,
                                                  const Deployment& deployment);

/// The body of an HTTP answer to a request that failed, in the protocol's form.
using ErrorBodyFunction = std::string (*)(const ErrorDetails& details, std::string_view request_id);

/// Chat Completions and Completions: OpenAI's form, which has no place for the request's id.
std::string openai_error_body(const ErrorDetails& details, std::string_view request_id);

/// Messages.
std::string messages_error_body(const ErrorDetails& details, std::string_view request_id);

/// How a protocol tells of a failure before its answer has begun.
struct ErrorForm {
  // Implicit: only the body sets most protocols apart.
  // NOLINTNEXTLINE(google-explicit-constructor)
  constexpr ErrorForm(ErrorBodyFunction write_body, int status_of_unavailable = 503)
      : body(write_body), unavailable_status(status_of_unavailable) {}

  ErrorBodyFunction body;
  int unavailable_status;  ///< when no engine is there, or the server drains
};

inline constexpr ErrorForm kOpenAiErrors{openai_error_body};
inline constexpr ErrorForm kMessagesErrors{messages_error_body, 529};

}  // namespace millrace::api::recipe
