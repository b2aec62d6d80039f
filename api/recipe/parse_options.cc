#include "api/recipe/parse_options.h"

namespace millrace::api::recipe {

ParseOptions parse_options(const Conversation& conversation, Stage stage,
                           ParallelCalls parallel_calls, const ParseOptions& reading) {
  ParseOptions options = reading;
  options.stage = stage;
  options.is_json = conversation.response_format == ResponseFormat::kJsonObject;
  if (conversation.tools.empty() || conversation.tool_choice.kind == ToolChoice::Kind::kNone) {
    return options;
  }
  options.markup = Markup::kCalls;
  options.calls.parallel_calls = parallel_calls;
  for (const Tool& tool : conversation.tools) {
    options.calls.tools.push_back({tool.full_name(), tool.properties});
  }
  return options;
}

}  // namespace millrace::api::recipe
