#include "common/json.h"

#include "common/str_cat.h"

namespace millrace {
namespace {

absl::Status missing(std::string_view key, std::string_view type) {
  return absl::InvalidArgumentError(str_cat("\"", key, "\" must be ", type));
}

const Json* member(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  auto it = object.find(key);
  return it == object.end() ? nullptr : &*it;
}

}  // namespace

absl::StatusOr<Json> parse_json(std::string_view text, const JsonLimits& limits) {
  bool too_deep = false;
  const auto watch_depth = [&](int depth, Json::parse_event_t event, Json&) {
    const bool opens =
        event == Json::parse_event_t::object_start || event == Json::parse_event_t::array_start;
    if (opens && depth >= limits.max_depth) too_deep = true;
    return !too_deep;
  };
  try {
    Json value = Json::parse(text, watch_depth);
    if (too_deep) {
      return absl::InvalidArgumentError(
          str_cat("JSON is nested deeper than ", limits.max_depth, " levels"));
    }
    return value;
  } catch (const Json::parse_error& error) {
    return absl::InvalidArgumentError(
        str_cat("invalid JSON at byte ", error.byte, ": ", error.what()));
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(str_cat("invalid JSON: ", error.what()));
  }
}

std::string dump_json(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string dump_json_pretty(const Json& value) {
  return value.dump(2, ' ', false, Json::error_handler_t::replace);
}

absl::StatusOr<std::string> json_string(const Json& object, std::string_view key) {
  const Json* value = member(object, key);
  if (value == nullptr || !value->is_string()) return missing(key, "a string");
  return value->get<std::string>();
}

absl::StatusOr<std::int64_t> json_int(const Json& object, std::string_view key) {
  const Json* value = member(object, key);
  if (value == nullptr || !value->is_number_integer()) return missing(key, "an integer");
  return value->get<std::int64_t>();
}

absl::StatusOr<double> json_number(const Json& object, std::string_view key) {
  const Json* value = member(object, key);
  if (value == nullptr || !value->is_number()) return missing(key, "a number");
  return value->get<double>();
}

absl::StatusOr<bool> json_bool(const Json& object, std::string_view key) {
  const Json* value = member(object, key);
  if (value == nullptr || !value->is_boolean()) return missing(key, "true or false");
  return value->get<bool>();
}

}  // namespace millrace
