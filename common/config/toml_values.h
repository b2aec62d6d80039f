#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"

namespace millrace::common::config {

/// A value of a TOML file.
struct TomlValue {
  /// Its path: "prefill.ranks"; members of the n-th [[fault]] are "fault.0.at_s", elements of a
  /// list "shares.0".
  std::string key = {};
  std::variant<bool, std::int64_t, double, std::string> value = {};
  int line = 0;  ///< from 1
};

/// Reads a TOML file as a flat list of its values, tables in the order of their names and arrays in
/// their own. Empty tables and arrays leave nothing; dates are not supported. kInvalidArgument
/// names the line and what is wrong.
absl::StatusOr<std::vector<TomlValue>> parse_toml_values(std::string_view text);

}  // namespace millrace::common::config
