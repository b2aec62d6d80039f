#include "common/json.h"

#include <functional>
#include <set>
#include <string>
#include <vector>

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

/// Follows the parser's events and notes the first thing that our limits or RFC 8259's advice of
/// unique names forbid. Returning false makes the parser drop the value, so nothing after it is
/// kept.
class Watch {
 public:
  explicit Watch(const JsonLimits& limits) : limits_(limits) {}

  bool operator()(int depth, Json::parse_event_t event, const Json& parsed) {
    using Event = Json::parse_event_t;
    if (!problem_.empty()) return false;
    if (event == Event::object_start || event == Event::array_start) {
      if (depth >= limits_.max_depth) {
        problem_ = str_cat("JSON is nested deeper than ", limits_.max_depth, " levels");
      }
      if (event == Event::object_start) names_.emplace_back();
    } else if (event == Event::object_end) {
      names_.pop_back();
    } else if (event == Event::key) {
      note_name(parsed.get_ref<const std::string&>());
    }
    return problem_.empty();
  }

  const std::string& problem() const { return problem_; }

 private:
  void note_name(const std::string& name) {
    std::set<std::string>& names = names_.back();
    if (!names.insert(name).second) {
      problem_ =
          str_cat("the member \"", name.substr(0, kShownBytes), "\" occurs twice in an object");
    } else if (names.size() > limits_.max_members) {
      problem_ = str_cat("a JSON object has more than ", limits_.max_members, " members");
    }
  }

  static constexpr std::size_t kShownBytes = 80;
  const JsonLimits& limits_;
  std::vector<std::set<std::string>> names_;  // of the objects that are open, outermost first
  std::string problem_;
};

}  // namespace

absl::StatusOr<Json> parse_json(std::string_view text, const JsonLimits& limits) {
  // The library takes a NUL for the end of the text and would not see what follows.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    return absl::InvalidArgumentError(str_cat("invalid JSON at byte ", nul + 1, ": a NUL"));
  }
  Watch watch(limits);
  try {
    Json value = Json::parse(text, std::ref(watch));
    if (!watch.problem().empty()) return absl::InvalidArgumentError(watch.problem());
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
