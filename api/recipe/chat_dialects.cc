#include "api/recipe/chat_dialects.h"

#include <optional>

#include "api/recipe/fields.h"
#include "api/recipe/request_error.h"
#include "common/json.h"
#include "common/status_macros.h"

namespace millrace::api::recipe {
namespace {

absl::Status lift_template_arguments(Json& body) {
  const Fields fields(body, "");
  const Json* found = fields.find("chat_template_kwargs");
  if (found == nullptr) return absl::OkStatus();
  RETURN_IF_ERROR(fields.require_object("chat_template_kwargs"));
  const Json arguments = *found;
  const Fields given(arguments, "chat_template_kwargs");
  ASSIGN_OR_RETURN(const auto thinking, given.boolean("thinking"));
  ASSIGN_OR_RETURN(const auto enable_thinking, given.boolean("enable_thinking"));
  const std::optional<bool> is_thinking = thinking ? thinking : enable_thinking;
  const Json* effort = given.find("reasoning_effort");
  // Either of the body's own fields says whether the model is to think.
  const bool is_told = fields.find("thinking") != nullptr;
  const bool has_effort = fields.find("reasoning_effort") != nullptr;
  if (is_thinking && !is_told && !has_effort) {
    body["thinking"] = {{"type", *is_thinking ? "enabled" : "disabled"}};
  }
  if (effort != nullptr && !has_effort) body["reasoning_effort"] = *effort;
  return absl::OkStatus();
}

absl::Status lift_continuation(Json& body) {
  const Fields fields(body, "");
  ASSIGN_OR_RETURN(const auto continues, fields.boolean("continue_final_message"));
  ASSIGN_OR_RETURN(const auto has_header, fields.boolean("add_generation_prompt"));
  if (!continues.value_or(false)) {
    if (has_header.value_or(true)) return absl::OkStatus();
    return field_error("add_generation_prompt",
                       "`add_generation_prompt` may be false only with `continue_final_message`: "
                       "an answer needs its header");
  }
  const auto messages = body.find("messages");
  const bool can_continue = messages != body.end() && messages->is_array() && !messages->empty() &&
                            messages->back().is_object() &&
                            messages->back().value("role", Json()) == "assistant";
  if (!can_continue) {
    return field_error("continue_final_message",
                       "`continue_final_message` needs a last message of role assistant");
  }
  messages->back()["prefix"] = true;
  return absl::OkStatus();
}

}  // namespace

absl::Status translate_dialects(Json& body) {
  const Fields fields(body, "");
  ASSIGN_OR_RETURN(const auto is_separate, fields.boolean("separate_reasoning"));
  if (!is_separate.value_or(true)) {
    return field_error("separate_reasoning",
                       "`separate_reasoning` must be true: reasoning is never part of the content");
  }
  RETURN_IF_ERROR(lift_template_arguments(body));
  return lift_continuation(body);
}

}  // namespace millrace::api::recipe
