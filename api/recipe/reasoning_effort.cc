#include "api/recipe/reasoning_effort.h"

#include <algorithm>
#include <array>
#include <string>

#include "api/recipe/request_error.h"
#include "common/json.h"
#include "common/str_cat.h"

namespace millrace::api::recipe {
namespace {

struct EffortName {
  std::string_view name;
  Effort::Name value;
};
constexpr std::array kEfforts = {
    EffortName{"minimal", Effort::Name::kLow}, EffortName{"low", Effort::Name::kLow},
    EffortName{"medium", Effort::Name::kHigh}, EffortName{"high", Effort::Name::kHigh},
    EffortName{"xhigh", Effort::Name::kXhigh}, EffortName{"max", Effort::Name::kMax}};

/// For formats that have names only.
Effort::Name name_of(int exact) {
  if (exact <= 50) return Effort::Name::kLow;
  return exact < 100 ? Effort::Name::kHigh : Effort::Name::kMax;
}

}  // namespace

absl::StatusOr<bool> read_effort(const Fields& fields, std::string_view name,
                                 Conversation& conversation) {
  const Json* effort = fields.find(name);
  if (effort == nullptr) return false;
  const std::string text = effort->is_string() ? effort->get<std::string>() : std::string();
  const auto* named = std::find_if(kEfforts.begin(), kEfforts.end(),
                                   [&](const EffortName& entry) { return entry.name == text; });
  conversation.thinking = text == "none" ? Thinking::kOff : Thinking::kOn;
  if (named != kEfforts.end()) {
    conversation.effort.name = named->value;
  } else if (effort->is_number_integer() && *effort >= 1 && *effort <= 100) {
    conversation.effort = {name_of(effort->get<int>()), effort->get<int>()};
  } else if (text != "none") {
    return field_error(fields.path(name),
                       str_cat("`", fields.path(name),
                               "` must be none, minimal, low, medium, high, xhigh, max or an "
                               "integer from 1 to 100"));
  }
  return true;
}

}  // namespace millrace::api::recipe
