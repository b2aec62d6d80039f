#include "api/recipe/models.h"

#include <array>
#include <charconv>
#include <ctime>
#include <utility>

#include "api/recipe/request_error.h"
#include "common/json.h"

namespace millrace::api::recipe {
namespace {

std::string timestamp(std::int64_t seconds) {
  const std::time_t time = seconds;
  std::tm parts{};
  gmtime_r(&time, &parts);
  std::array<char, 32> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

Json model(const std::string& id, const ModelFacts& facts, ModelsForm form) {
  Json json = Json::object();
  if (form == ModelsForm::kAnthropic) {
    json["type"] = "model";
    json["id"] = id;
    json["display_name"] = id;
    json["created_at"] = timestamp(facts.created_seconds);
    return json;
  }
  json["id"] = id;
  json["object"] = "model";
  json["created"] = facts.created_seconds;
  json["owned_by"] = "millrace";
  json["max_model_len"] = facts.context_tokens;
  return json;
}

/// "%2F" and the like; what is no escape stays as it is.
std::string percent_decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    int value = 0;
    const char* const digits = text.data() + i + 1;
    const bool is_escape = text[i] == '%' && i + 2 < text.size() &&
                           std::from_chars(digits, digits + 2, value, 16).ptr == digits + 2;
    out.push_back(is_escape ? static_cast<char>(value) : text[i]);
    if (is_escape) i += 2;
  }
  return out;
}

}  // namespace

std::string models_body(const Deployment& deployment, const ModelFacts& facts, ModelsForm form) {
  Json list = Json::array({model(deployment.model_id, facts, form)});
  for (const std::string& alias : deployment.aliases) list.push_back(model(alias, facts, form));
  Json body = Json::object();
  if (form == ModelsForm::kAnthropic) {
    body["first_id"] = list.front()["id"];
    body["last_id"] = list.back()["id"];
    body["has_more"] = false;
  } else {
    body["object"] = "list";
  }
  body["data"] = std::move(list);
  return dump_json(body);
}

absl::StatusOr<std::string> model_body(const Deployment& deployment, const ModelFacts& facts,
                                       ModelsForm form, std::string_view encoded_id) {
  const std::string id = percent_decoded(encoded_id);
  if (!deployment.names().has(id)) return unknown_model_error(id, deployment.model_id);
  return dump_json(model(id, facts, form));
}

}  // namespace millrace::api::recipe
