#include <algorithm>
#include <memory>
#include <utility>

#include "api/recipe/event_stream.h"
#include "api/recipe/fields.h"
#include "api/recipe/prepared_request.h"
#include "common/json.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::recipe {
namespace {

constexpr std::int64_t kMaxTopLogprobs = 20;

/// What of a request only the encoder needs.
struct CompletionOptions {
  bool return_logprobs = false;
  bool echo_ids = false;
  bool include_usage = false;
  std::uint32_t choices = 1;
};

/// Bytes of UTF-8 that begin a code point.
std::size_t code_points_begun(std::string_view bytes) {
  return static_cast<std::size_t>(std::count_if(
      bytes.begin(), bytes.end(), [](char byte) { return (byte & '\xc0') != '\x80'; }));
}

/// The Completions form of an answer.
class CompletionEncoder final : public ResponseEncoder {
 public:
  CompletionEncoder(const Deployment& deployment, const AnswerIdentity& identity,
                    const CompletionOptions& options, std::vector<TokenId> prompt)
      : deployment_(deployment),
        id_("cmpl-" + identity.request_id),
        created_(identity.created_seconds),
        options_(options),
        prompt_(std::move(prompt)),
        text_offset_(options.choices) {}

  std::string begin() override {
    std::string events;
    if (!options_.echo_ids) return events;
    for (std::uint32_t index = 0; index < options_.choices; ++index) {
      Json value = chunk(nothing_of(index));
      value["choices"][0]["prompt_token_ids"] = prompt_;
      events += data_event(value);
    }
    return events;
  }

  std::string delta(const OutputDelta& output) override {
    const bool has_ids = options_.echo_ids && !output.ids.empty();
    if (output.text.empty() && output.text_tokens.empty() && !has_ids) return "";
    return data_event(chunk(output));
  }

  std::string end_choice(const Ending& ending) override { return data_event(last_chunk(ending)); }

  std::string finish(const Ending& ending, const Usage& usage) override {
    Json last = last_chunk(ending);
    if (deployment_.usage_form == UsageForm::kFinishingChunk) last["usage"] = usage_json(usage);
    std::string events = data_event(last);
    if (options_.include_usage && deployment_.usage_form == UsageForm::kSeparateChunk) {
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
      Json choice = choice_of(output);
      choice["finish_reason"] = finish_reason_name(ending.reason);
      if (options_.echo_ids) choice["prompt_token_ids"] = prompt_;
      body["choices"].push_back(std::move(choice));
    }
    body["usage"] = usage_json(usage);
    return dump_json(body);
  }

 private:
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
    if (options_.echo_ids) choice["token_ids"] = output.ids;
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
    if (options_.include_usage) json["usage"] = nullptr;
    return json;
  }

  Json logprobs(const OutputDelta& output) {
    if (!options_.return_logprobs) return nullptr;
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
  const CompletionOptions options_;
  const std::vector<TokenId> prompt_;
  std::vector<std::size_t> text_offset_;  // code points before the next token, by choice
};

absl::StatusOr<std::vector<TokenId>> read_ids(const Json& list, int vocab_size) {
  std::vector<TokenId> ids;
  ids.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!list[i].is_number_integer() || list[i] < 0 || list[i] >= vocab_size) {
      return field_error(
          str_cat("prompt[", i, "]"),
          str_cat("`prompt[", i, "]` must be a token id from 0 to ", vocab_size - 1));
    }
    ids.push_back(list[i].get<TokenId>());
  }
  return ids;
}

/// Text is encoded with the base vocabulary behind the begin-of-sequence token; with
/// `parse_special` it is taken as a rendered prompt, in which spellings of control tokens count and
/// before which nothing is put.
absl::StatusOr<std::vector<TokenId>> encode_prompt_text(const std::string& text, bool parse_special,
                                                        const Deployment& deployment) {
  if (parse_special) return deployment.tokenizer->encode_with_special(text);
  std::vector<TokenId> ids{deployment.begin_of_sequence};
  ASSIGN_OR_RETURN(const std::vector<TokenId> rest, deployment.tokenizer->encode_text(text));
  ids.insert(ids.end(), rest.begin(), rest.end());
  return ids;
}

absl::StatusOr<std::vector<TokenId>> read_prompt(const Fields& body, const Deployment& deployment) {
  const Json* prompt = body.find("prompt");
  if (prompt == nullptr) {
    return field_error("prompt", "`prompt` is required", "missing_required_parameter");
  }
  ASSIGN_OR_RETURN(const auto parse_special, body.boolean("parse_special"));
  // A batch of one is the same as its only prompt.
  const bool is_batch = prompt->is_array() && !prompt->empty() && !prompt->front().is_number();
  if (is_batch) {
    if (prompt->size() != 1) {
      return field_error("prompt", "`prompt` may hold one prompt only", "unsupported_parameter");
    }
    prompt = &prompt->front();
  }
  std::vector<TokenId> ids;
  if (prompt->is_string()) {
    ASSIGN_OR_RETURN(ids, encode_prompt_text(prompt->get<std::string>(),
                                             parse_special.value_or(false), deployment));
  } else if (prompt->is_array()) {
    ASSIGN_OR_RETURN(ids, read_ids(*prompt, deployment.vocab_size));
  } else {
    return field_error("prompt", "`prompt` must be a string or a list of token ids",
                       "invalid_type");
  }
  if (ids.empty()) return field_error("prompt", "`prompt` is empty");
  return ids;
}

absl::Status check_other_fields(const Fields& body) {
  RETURN_IF_ERROR(body.refuse({"suffix", "tools", "response_format"}));
  ASSIGN_OR_RETURN(const auto echo, body.boolean("echo"));
  if (echo.value_or(false)) return unsupported_field("echo");
  ASSIGN_OR_RETURN(const auto best_of, body.integer("best_of", 0, 1 << 20));
  if (best_of.value_or(1) != 1) return field_error("best_of", "`best_of` may only be 1");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PreparedRequest> prepare_completion(std::string_view body,
                                                   const Deployment& deployment,
                                                   const AnswerIdentity& identity) {
  ASSIGN_OR_RETURN(const Json json, parse_body(body));
  const Fields fields(json, "");
  RETURN_IF_ERROR(check_model(fields, deployment.model_id));
  RETURN_IF_ERROR(check_other_fields(fields));
  PreparedRequest prepared;
  prepared.prompt_field = "prompt";
  ASSIGN_OR_RETURN(prepared.sampling, read_sampling(fields, deployment.vocab_size));
  prepared.parsing.stops = prepared.sampling.stop;
  ASSIGN_OR_RETURN(const auto logprobs, fields.integer("logprobs", 0, kMaxTopLogprobs));
  prepared.sampling.return_logprobs = logprobs.has_value();
  prepared.sampling.top_logprobs = static_cast<std::uint32_t>(logprobs.value_or(0));
  ASSIGN_OR_RETURN(const StreamOptions stream, read_stream_options(fields));
  prepared.is_streamed = stream.is_streamed;
  ASSIGN_OR_RETURN(const auto echo_ids, fields.boolean("echo_ids"));
  ASSIGN_OR_RETURN(prepared.prompt, read_prompt(fields, deployment));
  const CompletionOptions options{.return_logprobs = prepared.sampling.return_logprobs,
                                  .echo_ids = echo_ids.value_or(false),
                                  .include_usage = stream.include_usage,
                                  .choices = prepared.sampling.choices};
  prepared.encoder = std::make_unique<CompletionEncoder>(
      deployment, identity, options, options.echo_ids ? prepared.prompt : std::vector<TokenId>());
  return prepared;
}

}  // namespace millrace::api::recipe
