#include "api/recipe/fields.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "api/recipe/json_text.h"
#include "api/recipe/request_error.h"
#include "common/json.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::recipe {
namespace {

constexpr std::size_t kMaxLogitBiases = 1024;
constexpr double kMaxLogitBias = 100;

}  // namespace

Fields::Fields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

const Json* Fields::find(std::string_view name) const {
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

std::string Fields::path(std::string_view name) const {
  return where_.empty() ? std::string(name) : str_cat(where_, ".", name);
}

absl::StatusOr<std::optional<bool>> Fields::boolean(std::string_view name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::optional<bool>();
  if (!value->is_boolean()) {
    return field_error(path(name), str_cat("`", path(name), "` must be true or false"),
                       "invalid_type");
  }
  return std::optional<bool>(value->get<bool>());
}

absl::StatusOr<std::optional<std::string>> Fields::string(std::string_view name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::optional<std::string>();
  if (!value->is_string()) {
    return field_error(path(name), str_cat("`", path(name), "` must be a string"), "invalid_type");
  }
  return std::optional<std::string>(value->get<std::string>());
}

absl::StatusOr<std::optional<std::int64_t>> Fields::integer(std::string_view name, std::int64_t low,
                                                            std::int64_t high) const {
  const Json* value = find(name);
  if (value == nullptr) return std::optional<std::int64_t>();
  if (!value->is_number_integer()) {
    return field_error(path(name), str_cat("`", path(name), "` must be an integer"),
                       "invalid_type");
  }
  // Unsigned values past int64 would wrap in get<>().
  const bool too_large = value->is_number_unsigned() &&
                         value->get<std::uint64_t>() >
                             static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (too_large || value->get<std::int64_t>() < low || value->get<std::int64_t>() > high) {
    return field_error(path(name), str_cat("`", path(name), "` must be from ", low, " to ", high,
                                           ", is ", value->dump()));
  }
  return std::optional<std::int64_t>(value->get<std::int64_t>());
}

absl::StatusOr<std::optional<double>> Fields::number(std::string_view name, double low,
                                                     double high) const {
  const Json* value = find(name);
  if (value == nullptr) return std::optional<double>();
  if (!value->is_number()) {
    return field_error(path(name), str_cat("`", path(name), "` must be a number"), "invalid_type");
  }
  const double number = value->get<double>();
  if (!(number >= low && number <= high)) {
    return field_error(path(name), str_cat("`", path(name), "` must be from ", low, " to ", high,
                                           ", is ", value->dump()));
  }
  return std::optional<double>(number);
}

absl::Status Fields::require_object(std::string_view name) const {
  const Json* value = find(name);
  if (value == nullptr || value->is_object()) return absl::OkStatus();
  return field_error(path(name), str_cat("`", path(name), "` must be an object"), "invalid_type");
}

absl::Status Fields::refuse(std::initializer_list<std::string_view> names) const {
  for (std::string_view name : names) {
    if (find(name) != nullptr) return unsupported_field(path(name));
  }
  return absl::OkStatus();
}

namespace {

/// In any text or name. The parser has bounded the depth.
bool has_nul(const Json& value) {
  if (value.is_string()) return value.get_ref<const std::string&>().find('\0') != std::string::npos;
  if (value.is_array()) return std::any_of(value.begin(), value.end(), has_nul);
  if (!value.is_object()) return false;
  const auto& members = value.items();
  return std::any_of(members.begin(), members.end(), [](const auto& member) {
    return member.key().find('\0') != std::string::npos || has_nul(member.value());
  });
}

}  // namespace

std::string dotted(std::string_view path) {
  std::string out;
  for (const char c : path) {
    if (c == '[') {
      out.push_back('.');
    } else if (c != ']') {
      out.push_back(c);
    }
  }
  return out;
}

absl::StatusOr<Json> parse_body(std::string_view body) {
  // Such numbers are in no field's range, but may stand in a tool's schema, which is kept as text.
  const std::optional<std::string> clamped = clamp_numbers(body);
  absl::StatusOr<Json> value = parse_json(clamped ? *clamped : body);
  if (!value.ok()) return field_error("", message_of(value.status()), "invalid_json");
  if (!value->is_object()) return field_error("", "the body must be a JSON object", "invalid_json");
  // Only where the text can spell one is the whole looked through.
  if (body.find("\\u0000") != std::string_view::npos && has_nul(*value)) {
    return field_error("", "a text of the body has a NUL (\\u0000)", "invalid_json");
  }
  return value;
}

absl::Status check_model(const Fields& body, const ModelNames& served) {
  ASSIGN_OR_RETURN(const std::optional<std::string> model, body.string("model"));
  if (!model) return field_error("model", "`model` is required", "missing_required_parameter");
  if (!served.has(*model)) return unknown_model_error(*model, served.id);
  return absl::OkStatus();
}

namespace {

absl::StatusOr<std::vector<std::string>> read_stops(const Fields& body) {
  std::vector<std::string> stops;
  const Json* value = body.find("stop");
  if (value == nullptr) return stops;
  const Json list = value->is_array() ? *value : Json::array({*value});
  if (list.size() > kMaxStops) {
    return field_error(
        "stop", str_cat("`stop` may have at most ", kMaxStops, " strings, has ", list.size()));
  }
  for (const Json& stop : list) {
    if (!stop.is_string()) {
      return field_error("stop", "`stop` must be a string or a list of strings", "invalid_type");
    }
    stops.push_back(stop.get<std::string>());
    if (stops.back().empty() || stops.back().size() > kMaxStopBytes) {
      return field_error("stop",
                         str_cat("a string of `stop` must have 1 to ", kMaxStopBytes, " bytes"));
    }
  }
  return stops;
}

absl::StatusOr<std::vector<TokenId>> read_stop_tokens(const Fields& body, int vocab_size) {
  std::vector<TokenId> tokens;
  const Json* value = body.find("stop_token_ids");
  if (value == nullptr) return tokens;
  const auto is_token = [vocab_size](const Json& id) {
    return id.is_number_integer() && id >= 0 && id < vocab_size;
  };
  const bool is_list = value->is_array() && value->size() <= kMaxStopTokens &&
                       std::all_of(value->begin(), value->end(), is_token);
  if (!is_list) {
    return field_error("stop_token_ids",
                       str_cat("`stop_token_ids` must be a list of at most ", kMaxStopTokens,
                               " token ids from 0 to ", vocab_size - 1));
  }
  return value->get<std::vector<TokenId>>();
}

absl::StatusOr<std::map<TokenId, float>> read_logit_bias(const Fields& body, int vocab_size) {
  std::map<TokenId, float> biases;
  const Json* value = body.find("logit_bias");
  if (value == nullptr) return biases;
  RETURN_IF_ERROR(body.require_object("logit_bias"));
  if (value->size() > kMaxLogitBiases) {
    return field_error("logit_bias",
                       str_cat("`logit_bias` may name at most ", kMaxLogitBiases, " tokens"));
  }
  for (const auto& [key, bias] : value->items()) {
    std::int32_t token = -1;
    if (!absl::SimpleAtoi(key, &token) || token < 0 || token >= vocab_size) {
      return field_error("logit_bias",
                         str_cat("`logit_bias` names \"", key,
                                 "\", which is not a token id from 0 to ", vocab_size - 1));
    }
    if (!bias.is_number() || !(std::abs(bias.get<double>()) <= kMaxLogitBias)) {
      return field_error("logit_bias", str_cat("`logit_bias[", key, "]` must be a number from -",
                                               kMaxLogitBias, " to ", kMaxLogitBias));
    }
    biases[token] = bias.get<float>();
  }
  return biases;
}

/// Fields of vLLM and SGLang that change an answer and are not served: dropped, they would give
/// answers that break a schema or a promise.
absl::Status refuse_extensions(const Fields& body) {
  for (const char* name : {"use_beam_search", "return_hidden_states"}) {
    ASSIGN_OR_RETURN(const auto is_wanted, body.boolean(name));
    if (is_wanted.value_or(false)) RETURN_IF_ERROR(body.refuse({name}));
  }
  return body.refuse({"guided_json",
                      "guided_regex",
                      "guided_choice",
                      "guided_grammar",
                      "guided_decoding_backend",
                      "guided_whitespace_pattern",
                      "structured_outputs",
                      "structural_tag",
                      "json_schema",
                      "regex",
                      "ebnf",
                      "grammar",
                      "stop_regex",
                      "allowed_token_ids",
                      "bad_words",
                      "logits_processors",
                      "custom_logit_processor",
                      "prompt_logprobs",
                      "prompt_embeds",
                      "input_embeds",
                      "truncate_prompt_tokens",
                      "lora_path",
                      "session_params"});
}

absl::Status read_lengths(const Fields& body, Sampling& sampling) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
  ASSIGN_OR_RETURN(const auto max_tokens, body.integer("max_tokens", 1, kMax));
  ASSIGN_OR_RETURN(const auto completion, body.integer("max_completion_tokens", 1, kMax));
  if (max_tokens) sampling.max_tokens = static_cast<std::uint32_t>(*max_tokens);
  // The newer name of the same field wins.
  if (completion) sampling.max_tokens = static_cast<std::uint32_t>(*completion);
  ASSIGN_OR_RETURN(const auto min_tokens, body.integer("min_tokens", 0, kMax));
  sampling.min_tokens = static_cast<std::uint32_t>(min_tokens.value_or(0));
  if (sampling.max_tokens && sampling.min_tokens > *sampling.max_tokens) {
    return field_error("min_tokens",
                       str_cat("`min_tokens` is ", sampling.min_tokens, ", more than the ",
                               *sampling.max_tokens, " tokens that the answer may have"));
  }
  return absl::OkStatus();
}

absl::Status read_filters(const Fields& body, Sampling& sampling) {
  ASSIGN_OR_RETURN(const auto temperature, body.number("temperature", 0, 2));
  sampling.temperature = temperature.value_or(sampling.temperature);
  ASSIGN_OR_RETURN(const auto top_p, body.number("top_p", 0, 1));
  sampling.top_p = top_p.value_or(sampling.top_p);
  if (sampling.top_p == 0) {
    return field_error("top_p",
                       "`top_p` must be greater than 0; for the most likely token set "
                       "`temperature` to 0");
  }
  // -1 is how some clients spell "off".
  ASSIGN_OR_RETURN(const auto top_k, body.integer("top_k", -1, 1 << 30));
  sampling.top_k = top_k && *top_k > 0 ? static_cast<std::uint32_t>(*top_k) : 0;
  ASSIGN_OR_RETURN(const auto min_p, body.number("min_p", 0, 1));
  sampling.min_p = min_p.value_or(sampling.min_p);
  return absl::OkStatus();
}

absl::Status read_penalties(const Fields& body, Sampling& sampling) {
  ASSIGN_OR_RETURN(const auto presence, body.number("presence_penalty", -2, 2));
  sampling.presence_penalty = presence.value_or(sampling.presence_penalty);
  ASSIGN_OR_RETURN(const auto frequency, body.number("frequency_penalty", -2, 2));
  sampling.frequency_penalty = frequency.value_or(sampling.frequency_penalty);
  ASSIGN_OR_RETURN(const auto repetition, body.number("repetition_penalty", 0.01, 10));
  sampling.repetition_penalty = repetition.value_or(sampling.repetition_penalty);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Sampling> read_sampling(const Fields& body, int vocab_size) {
  Sampling sampling;
  RETURN_IF_ERROR(refuse_extensions(body));
  RETURN_IF_ERROR(read_lengths(body, sampling));
  RETURN_IF_ERROR(read_filters(body, sampling));
  RETURN_IF_ERROR(read_penalties(body, sampling));
  ASSIGN_OR_RETURN(sampling.stop, read_stops(body));
  ASSIGN_OR_RETURN(sampling.stop_tokens, read_stop_tokens(body, vocab_size));
  ASSIGN_OR_RETURN(const auto keeps_stop, body.boolean("include_stop_str_in_output"));
  ASSIGN_OR_RETURN(const auto trims_not, body.boolean("no_stop_trim"));  // SGLang's name for it
  sampling.keeps_stop = keeps_stop.value_or(trims_not.value_or(false));
  ASSIGN_OR_RETURN(sampling.logit_bias, read_logit_bias(body, vocab_size));
  ASSIGN_OR_RETURN(const auto seed, body.integer("seed", std::numeric_limits<std::int64_t>::min(),
                                                 std::numeric_limits<std::int64_t>::max()));
  if (seed) sampling.seed = static_cast<std::uint64_t>(*seed);
  ASSIGN_OR_RETURN(const auto ignore_eos, body.boolean("ignore_eos"));
  sampling.ignore_eos = ignore_eos.value_or(false);
  ASSIGN_OR_RETURN(const auto n, body.integer("n", 1, kMaxChoices));
  sampling.choices = static_cast<std::uint32_t>(n.value_or(1));
  return sampling;
}

absl::StatusOr<StreamOptions> read_stream_options(const Fields& body) {
  StreamOptions options;
  ASSIGN_OR_RETURN(const auto stream, body.boolean("stream"));
  options.is_streamed = stream.value_or(false);
  const Json* value = body.find("stream_options");
  if (value == nullptr) return options;
  RETURN_IF_ERROR(body.require_object("stream_options"));
  if (!options.is_streamed) {
    return field_error("stream_options", "stream_options should be set along with stream = true");
  }
  ASSIGN_OR_RETURN(const auto include, Fields(*value, "stream_options").boolean("include_usage"));
  options.include_usage = include.value_or(false);
  return options;
}

}  // namespace millrace::api::recipe
