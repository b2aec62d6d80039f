#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/recipe/json_text.h"
#include "api/recipe/output_parser.h"
#include "api/tokenizer/utf8_stream.h"
#include "common/check.h"
#include "common/json.h"
#include "tests/fuzz/byte_tokenizer.h"

/// Outputs of a model: the first byte chooses options; every other one is a token, but for 0xFF,
/// which makes the next byte choose a control token. What comes out is UTF-8, does not depend on
/// when deltas are taken, and every call that ends has arguments that are a JSON object.

namespace {

using namespace millrace;
using namespace millrace::api::recipe;

struct Output {
  std::string reasoning;
  std::string text;
  std::vector<ToolEvent> events;
  FinishReason reason = FinishReason::kStop;

  void add(const OutputDelta& delta) {
    reasoning += delta.reasoning;
    text += delta.text;
    for (const ToolEvent& event : delta.tool_events) {
      const bool is_more = event.kind == ToolEvent::Kind::kArguments && !events.empty() &&
                           events.back().kind == ToolEvent::Kind::kArguments;
      if (is_more) {
        events.back().text += event.text;
      } else {
        events.push_back(event);
      }
    }
  }
};

Output parse(const std::vector<TokenId>& ids, const ParseOptions& options, std::size_t group) {
  const Deployment& deployment = tests::fuzz::byte_deployment();
  OutputParser parser(*deployment.tokenizer, deployment.control, options);
  Output output;
  std::optional<OutputDelta> delta;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (!delta) delta.emplace();
    parser.push({ids[i], 0, {}}, *delta);
    if ((i + 1) % group == 0) {
      output.add(*delta);
      delta.reset();
    }
  }
  if (!delta) delta.emplace();
  output.reason = parser.finish(FinishReason::kStop, *delta);
  output.add(*delta);
  return output;
}

void check_calls(const Output& output) {
  std::string arguments;
  bool is_open = false;
  for (const ToolEvent& event : output.events) {
    CHECK(is_open == (event.kind != ToolEvent::Kind::kBegin));
    is_open = event.kind != ToolEvent::Kind::kEnd;
    if (event.kind == ToolEvent::Kind::kBegin) arguments.clear();
    if (event.kind == ToolEvent::Kind::kArguments) arguments += event.text;
    CHECK(api::tokenizer::find_invalid_utf8(event.text) == std::string::npos);
    if (is_open) continue;
    // By the library's grammar, not by the parser's own.
    CHECK(Json::accept(clamp_numbers(arguments).value_or(arguments)), arguments);
    CHECK(arguments.front() == '{');
  }
  CHECK(!is_open || output.reason == FinishReason::kLength);
  CHECK(output.reason != FinishReason::kToolCalls || !output.events.empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  ParseOptions options;
  const unsigned choice = data[0];
  options.stage = choice % 3 == 0   ? Stage::kReasoning
                  : choice % 3 == 1 ? Stage::kAnswer
                                    : Stage::kToolBlock;
  options.markup = (choice & 4) != 0 ? Markup::kText : Markup::kCalls;
  if ((choice & 8) != 0) options.stops = {"stop", "</"};
  if ((choice & 16) != 0) options.think_newlines = ThinkNewlines::kDrop;
  if ((choice & 32) != 0) options.block_newlines = BlockNewlines::kAll;
  if ((choice & 64) != 0) options.calls.tools = {{"f", {"a"}}};
  if ((choice & 128) != 0) {
    options.calls.unknown_tool = size % 2 == 0 ? UnknownTool::kReject : UnknownTool::kAsText;
    options.calls.parallel_calls = ParallelCalls::kOnlyOne;
  }
  if (options.stage == Stage::kToolBlock) options.markup = Markup::kCalls;
  std::vector<TokenId> ids;
  for (std::size_t i = 1; i < size; ++i) {
    if (data[i] == 0xFF && i + 1 < size) {
      ids.push_back(tests::fuzz::control_token(data[++i] % tests::fuzz::kControlTokens));
    } else {
      ids.push_back(data[i]);
    }
  }
  const Output whole = parse(ids, options, ids.size() + 1);
  CHECK(api::tokenizer::find_invalid_utf8(whole.reasoning + whole.text) == std::string::npos);
  check_calls(whole);
  for (const std::size_t group : {std::size_t{1}, std::size_t{3}}) {
    const Output other = parse(ids, options, group);
    CHECK(other.reasoning == whole.reasoning && other.text == whole.text);
    CHECK(other.events == whole.events && other.reason == whole.reason);
  }
  return 0;
}
