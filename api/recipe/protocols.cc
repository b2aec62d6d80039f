#include "api/recipe/protocols.h"

#include <array>
#include <string>
#include <utility>

#include "api/recipe/chat_request.h"
#include "api/recipe/messages_request.h"
#include "api/recipe/responses_request.h"
#include "api/recipe/thinking_sampling.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::recipe {
namespace {

/// What the requests of all protocols have.
template <typename Request>
DecodedRequest decoded(Request request, bool is_streamed, const Deployment& deployment) {
  settle_thinking_sampling(deployment.thinking_sampling, deployment.render.format,
                           request.conversation, request.sampling);
  return {std::move(request.conversation), request.parallel_calls, std::move(request.sampling),
          is_streamed};
}

absl::StatusOr<DecodedRequest> decode_chat(std::string_view body, const Deployment& deployment) {
  ASSIGN_OR_RETURN(ChatRequest request,
                   parse_chat_request(body, deployment.names(), deployment.vocab_size,
                                      deployment.default_thinking));
  const bool is_streamed = request.stream.is_streamed;
  return decoded(std::move(request), is_streamed, deployment);
}

absl::StatusOr<DecodedRequest> decode_messages(std::string_view body,
                                               const Deployment& deployment) {
  ASSIGN_OR_RETURN(MessagesRequest request,
                   parse_messages_request(body, deployment.names(), deployment.default_thinking,
                                          MaxTokens::kRequired));
  const bool is_streamed = request.is_streamed;
  return decoded(std::move(request), is_streamed, deployment);
}

/// Without a store: `previous_response_id` is refused.
absl::StatusOr<DecodedRequest> decode_responses(std::string_view body,
                                                const Deployment& deployment) {
  ASSIGN_OR_RETURN(
      ResponsesRequest request,
      parse_responses_request({.text = body, .request_id = {}, .earlier_items = {}}, deployment));
  const bool is_streamed = request.is_streamed;
  return decoded(std::move(request), is_streamed, deployment);
}

constexpr std::array kProtocols = {
    Protocol{"chat", "/v1/chat/completions", decode_chat, prepare_chat},
    Protocol{"responses", "/v1/responses", decode_responses, prepare_responses},
    Protocol{"messages", "/v1/messages", decode_messages, prepare_messages},
};

}  // namespace

std::span<const Protocol> all_protocols() { return kProtocols; }

absl::StatusOr<const Protocol*> find_protocol(std::string_view name) {
  std::string names;
  for (const Protocol& protocol : kProtocols) {
    if (protocol.name == name) return &protocol;
    names.append(names.empty() ? "" : ", ").append(protocol.name);
  }
  return absl::InvalidArgumentError(
      str_cat("there is no protocol \"", name, "\"; there are ", names));
}

}  // namespace millrace::api::recipe
