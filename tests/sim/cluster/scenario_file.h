#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/sim/cluster/scenario.h"

namespace millrace::sim {

/// Reads a scenario: TOML with the values that `scenario_help` lists, each within its range; those
/// left out have their defaults. `settings` are "key=value" and take the place of the file's.
/// Paths in the file are relative to it. kNotFound: no such file; kInvalidArgument names file, line
/// and key, and what is allowed.
absl::StatusOr<Scenario> read_scenario(const std::string& path,
                                       const std::vector<std::string>& settings);

/// Every value with its range, default and meaning, one a line.
std::string scenario_help();

}  // namespace millrace::sim
