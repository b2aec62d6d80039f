#include "common/config/toml_values.h"

#include <utility>

// The library throws, unless told not to; our code does not.
#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::common::config {
namespace {

absl::Status flatten(const toml::node& node, const std::string& key, std::vector<TomlValue>& out);

absl::Status flatten_table(const toml::table& table, const std::string& prefix,
                           std::vector<TomlValue>& out) {
  for (const auto& [key, node] : table) {
    const std::string_view name = key.str();
    RETURN_IF_ERROR(
        flatten(node, prefix.empty() ? std::string(name) : str_cat(prefix, ".", name), out));
  }
  return absl::OkStatus();
}

absl::Status flatten_array(const toml::array& array, const std::string& prefix,
                           std::vector<TomlValue>& out) {
  for (std::size_t i = 0; i < array.size(); ++i) {
    RETURN_IF_ERROR(flatten(array[i], str_cat(prefix, ".", i), out));
  }
  return absl::OkStatus();
}

absl::Status flatten(const toml::node& node, const std::string& key, std::vector<TomlValue>& out) {
  if (const auto* table = node.as_table()) return flatten_table(*table, key, out);
  if (const auto* array = node.as_array()) return flatten_array(*array, key, out);
  TomlValue value{.key = key, .line = static_cast<int>(node.source().begin.line)};
  if (const auto* flag = node.as_boolean()) {
    value.value = flag->get();
  } else if (const auto* integer = node.as_integer()) {
    value.value = integer->get();
  } else if (const auto* number = node.as_floating_point()) {
    value.value = number->get();
  } else if (const auto* text = node.as_string()) {
    value.value = text->get();
  } else {
    return absl::InvalidArgumentError(
        str_cat("line ", value.line, ": ", key, " is a date; there are none here"));
  }
  out.push_back(std::move(value));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<TomlValue>> parse_toml_values(std::string_view text) {
  const toml::parse_result parsed = toml::parse(text);
  if (!parsed) {
    return absl::InvalidArgumentError(
        str_cat("line ", parsed.error().source().begin.line,
                ": is no TOML: ", std::string_view(parsed.error().description())));
  }
  std::vector<TomlValue> values;
  RETURN_IF_ERROR(flatten_table(parsed.table(), "", values));
  return values;
}

}  // namespace millrace::common::config
