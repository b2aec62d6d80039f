#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace millrace::api::recipe {

/// JSON as text: where numbers must stay exact (tool schemas, arguments) no value is built, because
/// a double would lose digits. Texts are UTF-8; nesting deeper than 64 levels is refused.

/// Rewrites a JSON text as Python's `json.dumps(json.loads(text), ensure_ascii=False)` prints it:
/// ", " and ": " between, order kept, of a repeated member the last value at the first place,
/// floats in Python's shortest form. Integers of any size and floats that a double cannot hold keep
/// their text. kInvalidArgument names the offset of what is not JSON.
absl::StatusOr<std::string> python_json(std::string_view json);

/// A member of an object: its name decoded, its value as the text that was given.
struct RawMember {
  std::string name;
  std::string_view value;
};

/// The members of an object in order; views into `json`. kInvalidArgument when it is none.
absl::StatusOr<std::vector<RawMember>> raw_members(std::string_view json);

/// The text of an object's member; empty when `json` is no object or has no such member. A byte
/// order mark in front of the object is skipped.
std::string_view raw_member(std::string_view json, std::string_view name);

/// The elements of a list; views into `json`. kInvalidArgument when it is none.
absl::StatusOr<std::vector<std::string_view>> raw_elements(std::string_view json);

/// The text that a JSON string stands for; nullopt when `json` is no string.
std::optional<std::string> string_value(std::string_view json);

/// Appends text as the inside of a JSON string in Python's form: quotes, backslashes and control
/// characters escaped, everything else as it is.
void append_escaped(std::string_view text, std::string& out);

/// A JSON string, with its quotes.
std::string quoted(std::string_view text);

/// A copy in which numbers that overflow a double are replaced by the largest one, for a parser
/// that refuses them; nullopt when there are none. `json` need not be valid, and does not become
/// so.
std::optional<std::string> clamp_numbers(std::string_view json);

}  // namespace millrace::api::recipe
