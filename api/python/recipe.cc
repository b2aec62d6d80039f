#include "api/python/recipe.h"

#include "api/recipe/conversation_json.h"
#include "api/recipe/json_text.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::python {

std::string Prompt::text() const {
  std::string text;
  for (const recipe::Segment& segment : rendered_.segments) text += segment.text;
  return text;
}

absl::StatusOr<std::vector<TokenId>> Prompt::encode() const {
  return recipe::encode_prompt(rendered_.segments, *tokenizer_);
}

absl::StatusOr<std::size_t> Prompt::count() const {
  return recipe::count_prompt(rendered_.segments, *tokenizer_);
}

absl::StatusOr<Recipe> Recipe::open(SharedTokenizer tokenizer, const recipe::Settings& settings,
                                    std::optional<std::string> model, std::string fingerprint) {
  Recipe opened;
  opened.has_model_ = model.has_value();
  ASSIGN_OR_RETURN(opened.deployment_,
                   recipe::make_deployment(*tokenizer, settings, std::move(model).value_or("")));
  opened.deployment_.system_fingerprint = std::move(fingerprint);
  opened.tokenizer_ = std::move(tokenizer);
  return opened;
}

recipe::Deployment Recipe::deployment_for(const std::string& body) const {
  recipe::Deployment deployment = deployment_;
  if (!has_model_) {
    deployment.model_id = recipe::string_value(recipe::raw_member(body, "model")).value_or("model");
  }
  return deployment;
}

absl::StatusOr<recipe::DecodedRequest> Recipe::decode(const std::string& protocol,
                                                      const std::string& body) const {
  ASSIGN_OR_RETURN(const recipe::Protocol* const found, recipe::find_protocol(protocol));
  return found->decode(body, deployment_for(body));
}

absl::StatusOr<std::string> Recipe::convert(const std::string& protocol,
                                            const std::string& body) const {
  ASSIGN_OR_RETURN(const recipe::DecodedRequest request, decode(protocol, body));
  const bool is_parallel = request.parallel_calls == recipe::ParallelCalls::kAllowed;
  return str_cat("{\"conversation\": ", recipe::conversation_json(request.conversation),
                 ", \"sampling\": ", recipe::sampling_json(request.sampling),
                 ", \"parallel_tool_calls\": ", is_parallel ? "true" : "false",
                 ", \"stream\": ", request.is_streamed ? "true" : "false", "}");
}

absl::StatusOr<Prompt> Recipe::render(const recipe::Conversation& conversation) const {
  ASSIGN_OR_RETURN(recipe::RenderedPrompt rendered,
                   recipe::render(conversation, deployment_.render));
  return Prompt(tokenizer_, std::move(rendered));
}

absl::StatusOr<Prompt> Recipe::render(const std::string& protocol, const std::string& body) const {
  ASSIGN_OR_RETURN(const recipe::DecodedRequest request, decode(protocol, body));
  return render(request.conversation);
}

absl::StatusOr<Prompt> Recipe::render_conversation(const std::string& json) const {
  ASSIGN_OR_RETURN(const recipe::Conversation conversation, recipe::read_conversation(json));
  return render(conversation);
}

absl::StatusOr<std::unique_ptr<Answer>> Recipe::prepare(const std::string& protocol,
                                                        const std::string& body,
                                                        const std::string& id,
                                                        std::int64_t created) const {
  ASSIGN_OR_RETURN(const recipe::Protocol* const found, recipe::find_protocol(protocol));
  auto deployment = std::make_unique<recipe::Deployment>(deployment_for(body));
  ASSIGN_OR_RETURN(recipe::PreparedRequest prepared,
                   found->prepare(body, *deployment, {id, created}));
  return Answer::open(tokenizer_, std::move(deployment), std::move(prepared));
}

std::unique_ptr<Parser> Recipe::parser(recipe::ParseOptions options) const {
  const recipe::ParseOptions asked = std::exchange(options, deployment_.reading);
  options.stage = asked.stage;
  options.stops = asked.stops;
  options.markup = asked.markup;
  options.calls.tools = asked.calls.tools;
  options.calls.parallel_calls = asked.calls.parallel_calls;
  return std::make_unique<Parser>(tokenizer_, deployment_.control, std::move(options));
}

}  // namespace millrace::api::python
