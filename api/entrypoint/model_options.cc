#include "api/entrypoint/model_options.h"

#include <string_view>

#include "common/annotate.h"
#include "common/json.h"
#include "common/mapped_file.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::entrypoint {
namespace {

absl::StatusOr<std::vector<std::string>> read_aliases(const Json& value) {
  std::vector<std::string> aliases;
  const auto error = absl::InvalidArgumentError("`aliases` must be a list of names");
  if (!value.is_array()) return error;
  aliases.reserve(value.size());
  for (const Json& alias : value) {
    if (!alias.is_string() || alias.get_ref<const std::string&>().empty()) return error;
    aliases.push_back(alias.get<std::string>());
  }
  return aliases;
}

absl::StatusOr<ModelOptions> parse_options(std::string_view text) {
  ASSIGN_OR_RETURN(const Json json, parse_json(text));
  if (!json.is_object()) return absl::InvalidArgumentError("it must be a JSON object");
  ModelOptions options;
  for (const auto& [name, value] : json.items()) {
    if (name == "aliases") {
      ASSIGN_OR_RETURN(options.aliases, read_aliases(value));
    } else {
      const std::string text_value = value.is_string() ? value.get<std::string>() : value.dump();
      RETURN_IF_ERROR(recipe::change_setting(name, text_value, options.settings));
    }
  }
  return options;
}

}  // namespace

absl::StatusOr<ModelOptions> read_model_options(const std::string& folder) {
  const std::string path = folder + "/serving.json";
  const absl::StatusOr<std::string> text = read_file(path);
  if (absl::IsNotFound(text.status())) return ModelOptions();
  if (!text.ok()) return text.status();
  absl::StatusOr<ModelOptions> options = parse_options(*text);
  if (!options.ok()) return annotate(options.status(), path);
  return options;
}

}  // namespace millrace::api::entrypoint
