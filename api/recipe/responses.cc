#include <utility>

#include "api/recipe/image_reference.h"
#include "api/recipe/parse_options.h"
#include "api/recipe/prepared_request.h"
#include "api/recipe/responses_encoder.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::recipe {
namespace {

constexpr std::string_view kIdPrefix = "resp_";

}  // namespace

absl::StatusOr<PreparedResponse> prepare_response(std::string_view body,
                                                  const Deployment& deployment,
                                                  const AnswerIdentity& identity,
                                                  const ResponsesContext& context) {
  ASSIGN_OR_RETURN(
      ResponsesRequest request,
      parse_responses_request({body, identity.request_id, context.earlier_items}, deployment));
  RETURN_IF_ERROR(refuse_images(request.conversation));
  settle_thinking_sampling(deployment.thinking_sampling, deployment.render.format,
                           request.conversation, request.sampling);
  PreparedResponse prepared;
  prepared.is_streamed = request.is_streamed;
  prepared.is_background = request.is_background;
  prepared.is_stored = request.is_stored;
  prepared.input_items = std::move(request.input_items);
  ASSIGN_OR_RETURN(const RenderedPrompt prompt, render(request.conversation, deployment.render));
  PreparedRequest& engine = prepared.request;
  engine.prompt_field = "input";
  engine.user_id = std::move(request.user_id);
  engine.has_tools = !request.conversation.tools.empty();
  ASSIGN_OR_RETURN(engine.prompt,
                   encode_prompt(prompt.segments, *deployment.tokenizer, deployment.encode_pool));
  engine.parsing =
      parse_options(request.conversation, prompt.stage, request.parallel_calls, deployment.reading);
  engine.parsing.stops = request.sampling.stop;
  engine.is_streamed = request.is_streamed;
  prepared.encoder = std::make_unique<ResponsesEncoder>(
      deployment,
      ResponsesEncoding{.response_id = str_cat(kIdPrefix, identity.request_id,
                                               context.owner.empty() ? "" : "_", context.owner),
                        .request_id = identity.request_id,
                        .created_seconds = identity.created_seconds,
                        .now_seconds = context.now_seconds,
                        .reasoning_form = request.reasoning_form,
                        .seals_reasoning = request.seals_reasoning,
                        .return_logprobs = request.sampling.return_logprobs,
                        .custom_tools = std::move(request.custom_tools),
                        .echo = std::move(request.echo)});
  engine.sampling = std::move(request.sampling);
  return prepared;
}

absl::StatusOr<PreparedRequest> prepare_responses(std::string_view body,
                                                  const Deployment& deployment,
                                                  const AnswerIdentity& identity) {
  ASSIGN_OR_RETURN(
      PreparedResponse prepared,
      prepare_response(body, deployment, identity,
                       {.owner = {},
                        .earlier_items = std::nullopt,
                        .now_seconds = [created = identity.created_seconds] { return created; }}));
  prepared.request.encoder = std::move(prepared.encoder);
  return std::move(prepared.request);
}

std::optional<std::string> owner_of_response(std::string_view response_id) {
  if (!response_id.starts_with(kIdPrefix)) return std::nullopt;
  response_id.remove_prefix(kIdPrefix.size());
  // The request's id has no underscore, the owner's may.
  const std::size_t end = response_id.find('_');
  if (end == 0 || end == std::string_view::npos || end + 1 == response_id.size()) {
    return std::nullopt;
  }
  return std::string(response_id.substr(end + 1));
}

}  // namespace millrace::api::recipe
