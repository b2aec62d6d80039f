#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "api/recipe/conversation.h"
#include "api/recipe/prompt.h"
#include "common/json.h"

namespace millrace::api::recipe::test {

/// A file of tests/data/encoding.
std::string read_fixture(const std::string& name);
/// The values of a file with one JSON text a line.
std::vector<Json> read_fixture_lines(const std::string& name);

/// A conversation in the release encoders' form: {thinking_mode, reasoning_effort?, tools?,
/// messages}.
Conversation release_conversation(const Json& body);

/// The spelled-out prompt.
std::string prompt_text(const std::vector<Segment>& segments);

}  // namespace millrace::api::recipe::test
