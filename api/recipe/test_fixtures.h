#pragma once

#include <functional>
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

/// A stream of v4-streams/: what the model wrote, and its expected parse.
struct CapturedStream {
  std::string name;
  std::string output;
  Json expected;
};
std::vector<CapturedStream> captured_streams();

/// A conversation in the release encoders' form: {thinking_mode, reasoning_effort?, tools?,
/// messages}.
Conversation release_conversation(const Json& body);

/// The JSON values of an event stream, without what ends it. An event that has a name is named by
/// its type.
std::vector<Json> events_of(const std::string& stream);

/// Events of which those that follow each other and bring pieces of arguments are one.
std::vector<Json> merged(const std::vector<Json>& events,
                         const std::function<Json*(Json& event)>& piece_of);

/// The spelled-out prompt.
std::string prompt_text(const std::vector<Segment>& segments);

}  // namespace millrace::api::recipe::test
