#include "api/recipe/tokenize.h"

#include <optional>
#include <utility>
#include <vector>

#include "api/recipe/completion_request.h"
#include "api/recipe/fields.h"
#include "api/recipe/image_reference.h"
#include "api/recipe/json_text.h"
#include "api/recipe/prompt.h"
#include "api/recipe/protocols.h"
#include "api/recipe/request_error.h"
#include "common/json.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::recipe {
namespace {

absl::StatusOr<std::vector<TokenId>> prompt_ids(const Fields& body, const Deployment& deployment) {
  ASSIGN_OR_RETURN(const std::optional<std::string> prompt, body.string("prompt"));
  ASSIGN_OR_RETURN(const auto special, body.boolean("add_special_tokens"));
  std::vector<TokenId> ids;
  if (special.value_or(true)) ids.push_back(deployment.begin_of_sequence);
  ASSIGN_OR_RETURN(const std::vector<TokenId> text, deployment.tokenizer->encode_text(*prompt));
  ids.insert(ids.end(), text.begin(), text.end());
  return ids;
}

/// How the prompt of messages ends.
absl::Status settle_end(const Fields& body, Conversation& conversation) {
  ASSIGN_OR_RETURN(const auto header, body.boolean("add_generation_prompt"));
  ASSIGN_OR_RETURN(const auto continues, body.boolean("continue_final_message"));
  if (!continues.value_or(false)) {
    if (header.value_or(true)) return absl::OkStatus();
    return field_error("add_generation_prompt",
                       "`add_generation_prompt` may be false only when `continue_final_message` "
                       "is true");
  }
  if (header.value_or(false)) {
    return field_error("continue_final_message",
                       "`continue_final_message` and `add_generation_prompt` cannot both be true");
  }
  const bool is_answer =
      !conversation.messages.empty() && conversation.messages.back().role == Role::kAssistant;
  if (!is_answer) {
    return field_error("continue_final_message",
                       "`continue_final_message` needs a last message of the assistant");
  }
  conversation.messages.back().is_prefix = true;
  return absl::OkStatus();
}

/// A body that names its model: the chat protocol requires one.
std::string with_model(const Json& json, std::string_view body, const Deployment& deployment) {
  if (json.contains("model")) return std::string(body);
  const std::size_t inside = body.find('{') + 1;
  return str_cat(body.substr(0, inside), "\"model\":", recipe::quoted(deployment.model_id), ",",
                 body.substr(inside));
}

absl::StatusOr<std::vector<TokenId>> message_ids(const Json& json, std::string_view body,
                                                 const Deployment& deployment) {
  const Fields fields(json, "");
  RETURN_IF_ERROR(fields.refuse({"chat_template"}));
  ASSIGN_OR_RETURN(const auto special, fields.boolean("add_special_tokens"));
  if (special.value_or(false)) {
    return field_error("add_special_tokens",
                       "`add_special_tokens` cannot be true with `messages`: their prompt has all "
                       "tokens that it needs");
  }
  ASSIGN_OR_RETURN(const Protocol* const chat, find_protocol("chat"));
  ASSIGN_OR_RETURN(DecodedRequest request,
                   chat->decode(with_model(json, body, deployment), deployment));
  RETURN_IF_ERROR(refuse_images(request.conversation));
  RETURN_IF_ERROR(settle_end(fields, request.conversation));
  ASSIGN_OR_RETURN(const RenderedPrompt prompt, render(request.conversation, deployment.render));
  return encode_prompt(prompt.segments, *deployment.tokenizer, deployment.encode_pool);
}

/// The printable alphabet of byte-level files: a byte that prints as itself in Latin-1 is that
/// character, the others are U+0100 and on, in their order.
std::vector<std::string> byte_alphabet() {
  std::vector<std::string> alphabet;
  unsigned next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool is_printable = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
    const unsigned code = is_printable ? byte : next++;
    std::string& character = alphabet.emplace_back();
    if (code < 0x80) {
      character.push_back(static_cast<char>(code));
    } else {
      character.push_back(static_cast<char>(0xc0 | code >> 6));
      character.push_back(static_cast<char>(0x80 | (code & 0x3f)));
    }
  }
  return alphabet;
}

Json token_strings(const std::vector<TokenId>& ids, const tokenizer::Tokenizer& tokenizer) {
  static const std::vector<std::string> kAlphabet = byte_alphabet();
  Json strings = Json::array();
  for (const TokenId id : ids) {
    const std::string_view bytes = tokenizer.token_bytes(id);
    std::string spelling;
    if (tokenizer.control_token(bytes) == id) {
      spelling = bytes;
    } else {
      for (const char byte : bytes) spelling += kAlphabet[static_cast<unsigned char>(byte)];
    }
    strings.push_back(std::move(spelling));
  }
  return strings;
}

absl::Status check_optional_model(const Fields& body, const Deployment& deployment) {
  return body.find("model") == nullptr ? absl::OkStatus() : check_model(body, deployment.names());
}

}  // namespace

absl::StatusOr<std::string> tokenize(std::string_view body, const Deployment& deployment,
                                     int max_model_len) {
  ASSIGN_OR_RETURN(const Json json, parse_body(body));
  const Fields fields(json, "");
  RETURN_IF_ERROR(check_optional_model(fields, deployment));
  const bool has_messages = fields.find("messages") != nullptr;
  if (has_messages == (fields.find("prompt") != nullptr)) {
    return field_error("prompt", "either `prompt` or `messages` is required",
                       "missing_required_parameter");
  }
  ASSIGN_OR_RETURN(const auto strings, fields.boolean("return_token_strs"));
  ASSIGN_OR_RETURN(const std::vector<TokenId> ids, has_messages
                                                       ? message_ids(json, body, deployment)
                                                       : prompt_ids(fields, deployment));
  Json answer = Json::object();
  answer["count"] = ids.size();
  answer["max_model_len"] = max_model_len;
  answer["tokens"] = ids;
  answer["token_strs"] =
      strings.value_or(false) ? token_strings(ids, *deployment.tokenizer) : Json();
  return dump_json(answer);
}

absl::StatusOr<std::string> detokenize(std::string_view body, const Deployment& deployment) {
  ASSIGN_OR_RETURN(const Json json, parse_body(body));
  const Fields fields(json, "");
  RETURN_IF_ERROR(check_optional_model(fields, deployment));
  const Json* tokens = fields.find("tokens");
  if (tokens == nullptr || !tokens->is_array()) {
    return field_error("tokens", "`tokens` must be a list of token ids",
                       tokens == nullptr ? "missing_required_parameter" : "invalid_type");
  }
  ASSIGN_OR_RETURN(const std::vector<TokenId> ids,
                   read_token_ids(*tokens, "tokens", deployment.vocab_size));
  Json answer = Json::object();
  answer["prompt"] = deployment.tokenizer->decode(ids);
  return dump_json(answer);
}

}  // namespace millrace::api::recipe
