#include <algorithm>
#include <memory>
#include <utility>

#include "api/recipe/completion_request.h"
#include "api/recipe/event_stream.h"
#include "api/recipe/prepared_request.h"
#include "common/json.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::recipe {
namespace {

/// Bytes of UTF-8 that begin a code point.
std::size_t code_points_begun(std::string_view bytes) {
  return static_cast<std::size_t>(std::count_if(
      bytes.begin(), bytes.end(), [](char byte) { return (byte & '\xc0') != '\x80'; }));
}

/// The Completions form of an answer.
class CompletionEncoder final : public ResponseEncoder {
 public:
  CompletionEncoder(const Deployment& deployment, const AnswerIdentity& identity,
                    CompletionRequest request)
      : deployment_(deployment),
        id_("cmpl-" + identity.request_id),
        created_(identity.created_seconds),
        request_(std::move(request)),
        text_offset_(request_.prompts.size() * request_.sampling.choices) {}

  std::string begin() override {
    std::string events;
    for (std::uint32_t index = 0; index < text_offset_.size(); ++index) {
      const CompletionPrompt& prompt = prompt_of(index);
      if (!request_.echo_ids && prompt.echo.empty()) continue;
      OutputDelta echo;
      echo.choice = index;
      echo.text = prompt.echo;
      Json value = chunk(echo);
      if (request_.echo_ids) value["choices"][0]["prompt_token_ids"] = prompt.ids;
      events += data_event(value);
    }
    return events;
  }

  std::string delta(const OutputDelta& output) override {
    const bool has_ids = request_.echo_ids && !output.ids.empty();
    if (output.text.empty() && output.text_tokens.empty() && !has_ids) return "";
    return data_event(chunk(output));
  }

  std::string end_choice(const Ending& ending) override { return data_event(last_chunk(ending)); }

  std::string finish(const Ending& ending, const Usage& usage) override {
    Json last = last_chunk(ending);
    if (deployment_.usage_form == UsageForm::kFinishingChunk) last["usage"] = usage_json(usage);
    std::string events = data_event(last);
    if (request_.stream.include_usage && deployment_.usage_form == UsageForm::kSeparateChunk) {
      Json extra = head();
      extra["choices"] = Json::array();
      extra["usage"] = usage_json(usage);
      events += data_event(extra);
    }
    return events.append(kDoneEvent);
  }

  std::string fail(const ErrorDetails& error) override {
    return str_cat("data: ", error_body(error), "\n\n");
  }

  std::string complete(const std::vector<Choice>& choices, const Usage& usage) override {
    Json body = head();
    for (const auto& [output, ending] : choices) {
      const CompletionPrompt& prompt = prompt_of(output.choice);
      Json choice = choice_of(output);
      if (!prompt.echo.empty()) choice["text"] = prompt.echo + output.text;
      choice["finish_reason"] = finish_reason_name(ending.reason);
      if (request_.echo_ids) choice["prompt_token_ids"] = prompt.ids;
      body["choices"].push_back(std::move(choice));
    }
    body["usage"] = usage_json(usage);
    return dump_json(body);
  }

 private:
  /// Answers are counted prompt by prompt.
  const CompletionPrompt& prompt_of(std::size_t choice) const {
    return request_.prompts[choice / request_.sampling.choices];
  }

  Json head() const {
    Json json = Json::object();
    json["id"] = id_;
    json["object"] = "text_completion";
    json["created"] = created_;
    json["model"] = deployment_.model_id;
    json["system_fingerprint"] = deployment_.system_fingerprint;
    return json;
  }

  Json choice_of(const OutputDelta& output) {
    Json choice = Json::object();
    choice["index"] = output.choice;
    choice["text"] = output.text;
    choice["logprobs"] = logprobs(output);
    choice["finish_reason"] = nullptr;
    if (request_.echo_ids) choice["token_ids"] = output.ids;
    return choice;
  }

  static OutputDelta nothing_of(std::uint32_t choice) {
    OutputDelta nothing;
    nothing.choice = choice;
    return nothing;
  }

  Json last_chunk(const Ending& ending) {
    Json last = chunk(nothing_of(ending.choice));
    last["choices"][0]["finish_reason"] = finish_reason_name(ending.reason);
    return last;
  }

  Json chunk(const OutputDelta& output) {
    Json json = head();
    json["choices"].push_back(choice_of(output));
    if (request_.stream.include_usage) json["usage"] = nullptr;
    return json;
  }

  Json logprobs(const OutputDelta& output) {
    if (!request_.sampling.return_logprobs) return nullptr;
    Json json = Json::object();
    for (const char* key : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
      json[key] = Json::array();
    }
    for (const GeneratedToken& token : output.text_tokens) {
      json["tokens"].push_back(token_text(*deployment_.tokenizer, token.id));
      json["token_logprobs"].push_back(token.logprob);
      Json top = Json::object();
      // Two tokens may look alike as text (parts of one code point); the likelier is listed. The
      // token itself is always there.
      const auto add = [&](TokenId id, float logprob) {
        const std::string text = token_text(*deployment_.tokenizer, id);
        if (!top.contains(text)) top[text] = logprob;
      };
      for (const auto& [id, logprob] : token.top) add(id, logprob);
      add(token.id, token.logprob);
      json["top_logprobs"].push_back(std::move(top));
      std::size_t& offset = text_offset_[output.choice];
      json["text_offset"].push_back(offset);
      offset += code_points_begun(deployment_.tokenizer->token_bytes(token.id));
    }
    return json;
  }

  const Deployment& deployment_;
  const std::string id_;
  const std::int64_t created_;
  const CompletionRequest request_;
  std::vector<std::size_t> text_offset_;  // code points before the next token, by choice
};

}  // namespace

absl::StatusOr<PreparedRequest> prepare_completion(std::string_view body,
                                                   const Deployment& deployment,
                                                   const AnswerIdentity& identity) {
  ASSIGN_OR_RETURN(CompletionRequest request, parse_completion_request(body, deployment));
  PreparedRequest prepared;
  // The encoder keeps the ids only where it returns them.
  const auto take = [&](std::vector<TokenId>& ids) {
    return request.echo_ids ? ids : std::exchange(ids, {});
  };
  prepared.prompt = take(request.prompts.front().ids);
  for (std::size_t i = 1; i < request.prompts.size(); ++i) {
    prepared.further_prompts.push_back(take(request.prompts[i].ids));
  }
  prepared.prompt_field = "prompt";
  prepared.user_id = request.user_id;
  prepared.sampling = request.sampling;
  prepared.parsing.stops = request.sampling.stop;
  prepared.parsing.keeps_stop = request.sampling.keeps_stop;
  prepared.is_streamed = request.stream.is_streamed;
  prepared.encoder = std::make_unique<CompletionEncoder>(deployment, identity, std::move(request));
  return prepared;
}

}  // namespace millrace::api::recipe
