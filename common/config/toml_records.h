#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace millrace::common::config {

/// What a file of records may hold.
struct TomlRecordRules {
  std::string name;                   ///< of the list: each record begins with [[name]]
  std::vector<std::string> required;  ///< members of every record
  std::vector<std::string> optional;  ///< members that a record may have
};

/// One [[name]] of a file, with its members, all of them text.
struct TomlRecord {
  int line = 0;  ///< where it begins, from 1
  std::map<std::string, std::string, std::less<>> members;
  std::map<std::string, int, std::less<>> lines;  ///< of the members
};

/// Reads a TOML file that is a list of records with text in them, in the file's order. Nothing else
/// is allowed in it. kInvalidArgument names the line and what is allowed there.
absl::StatusOr<std::vector<TomlRecord>> parse_toml_records(std::string_view text,
                                                           const TomlRecordRules& rules);

}  // namespace millrace::common::config
