#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace millrace {

/// The one JSON value type: keeps key order. Used at the edges only; include it in .cc files.
using Json = nlohmann::ordered_json;

/// Limits that bytes from outside must respect.
struct JsonLimits {
  int max_depth = 64;
  /// Of one object. A value finds its members by linear search, so that a text with many takes
  /// quadratic time to read: an object of 100,000 takes half a minute.
  std::size_t max_members = 2048;
};

/// Parses text; kInvalidArgument names the byte offset and the reason (bad syntax, bad UTF-8), or
/// says what else is wrong: too deep, too many members, a member (named) that occurs twice.
absl::StatusOr<Json> parse_json(std::string_view text, const JsonLimits& limits = {});

/// Serialises on one line. Invalid UTF-8 in a string becomes U+FFFD; never throws.
std::string dump_json(const Json& value);

/// Serialises with two-space indentation, for people.
std::string dump_json_pretty(const Json& value);

/// Typed access to a required member; kInvalidArgument names the key and the expected type.
absl::StatusOr<std::string> json_string(const Json& object, std::string_view key);
absl::StatusOr<std::int64_t> json_int(const Json& object, std::string_view key);
absl::StatusOr<double> json_number(const Json& object, std::string_view key);
absl::StatusOr<bool> json_bool(const Json& object, std::string_view key);

}  // namespace millrace
