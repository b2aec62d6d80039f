#include "common/config/toml_records.h"

#include <algorithm>
#include <utility>

// The library throws, unless told not to; our code does not.
#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::common::config {
namespace {

int line_of(const toml::node& node) { return static_cast<int>(node.source().begin.line); }

std::string list_of(const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) list.append(list.empty() ? "" : ", ").append(name);
  return list;
}

std::string allowed_members(const TomlRecordRules& rules) {
  std::string allowed = list_of(rules.required);
  if (!rules.optional.empty()) allowed += str_cat(" and, if wanted, ", list_of(rules.optional));
  return allowed;
}

bool has(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

absl::StatusOr<TomlRecord> read_record(const toml::table& table, const TomlRecordRules& rules) {
  TomlRecord record;
  record.line = line_of(table);
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    if (!has(rules.required, name) && !has(rules.optional, name)) {
      return absl::InvalidArgumentError(str_cat("line ", line_of(node), ": \"", name,
                                                "\" is not known; a [[", rules.name, "]] has ",
                                                allowed_members(rules)));
    }
    const auto* text = node.as_string();
    if (text == nullptr) {
      return absl::InvalidArgumentError(
          str_cat("line ", line_of(node), ": \"", name, "\" must be text in quotes"));
    }
    record.members[name] = text->get();
    record.lines[name] = line_of(node);
  }
  for (const std::string& name : rules.required) {
    if (record.members.contains(name)) continue;
    return absl::InvalidArgumentError(str_cat("line ", record.line, ": \"", name,
                                              "\" is missing; a [[", rules.name, "]] has ",
                                              allowed_members(rules)));
  }
  return record;
}

}  // namespace

absl::StatusOr<std::vector<TomlRecord>> parse_toml_records(std::string_view text,
                                                           const TomlRecordRules& rules) {
  const toml::parse_result parsed = toml::parse(text);
  if (!parsed) {
    return absl::InvalidArgumentError(
        str_cat("line ", parsed.error().source().begin.line,
                ": is no TOML: ", std::string_view(parsed.error().description())));
  }
  std::vector<TomlRecord> records;
  for (const auto& [key, node] : parsed.table()) {
    const toml::array* list = key.str() == rules.name ? node.as_array() : nullptr;
    if (list == nullptr || !list->is_homogeneous(toml::node_type::table)) {
      return absl::InvalidArgumentError(
          str_cat("line ", line_of(node), ": \"", std::string_view(key.str()),
                  "\" is not known here; only [[", rules.name, "]] is allowed"));
    }
    records.reserve(list->size());
    for (const toml::node& item : *list) {
      ASSIGN_OR_RETURN(TomlRecord record, read_record(*item.as_table(), rules));
      records.push_back(std::move(record));
    }
  }
  return records;
}

}  // namespace millrace::common::config
