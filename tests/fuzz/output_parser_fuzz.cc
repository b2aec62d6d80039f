#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/recipe/control_spelling.h"
#include "api/recipe/json_text.h"
#include "api/recipe/output_parser.h"
#include "api/tokenizer/tokenizer.h"
#include "api/tokenizer/utf8_stream.h"
#include "common/check.h"
#include "common/json.h"

/// Outputs of a model: the first byte chooses options; every other one is a token, but for 0xFF,
/// which makes the next byte choose a control token. What comes out is UTF-8, does not depend on
/// when deltas are taken, and every call that ends has arguments that are a JSON object.

namespace {

using namespace millrace;
using namespace millrace::api::recipe;

constexpr std::array kControls = {spelling::kDsml, spelling::kThinkBegin, spelling::kThinkEnd,
                                  spelling::kEnd};

/// How byte-level vocabularies spell a byte: printable ones as themselves, the others from U+0100.
std::string byte_character(int byte) {
  const auto is_printable = [](int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
  };
  int code = byte;
  if (!is_printable(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += is_printable(b) ? 0 : 1;
  }
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

/// A tokenizer whose ids 0 to 255 are the bytes and 256 on the control tokens.
std::unique_ptr<api::tokenizer::Tokenizer> make_tokenizer() {
  Json file = Json::object();
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  file["added_tokens"] = Json::array();
  for (std::size_t i = 0; i < kControls.size(); ++i) {
    file["added_tokens"].push_back({{"id", 256 + i},
                                    {"content", kControls[i]},
                                    {"single_word", false},
                                    {"lstrip", false},
                                    {"rstrip", false},
                                    {"normalized", false},
                                    {"special", true}});
  }
  file["normalizer"] = nullptr;
  file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", Json::array({byte_level})}};
  file["post_processor"] = nullptr;
  file["decoder"] = {{"type", "ByteLevel"}};
  file["model"]["type"] = "BPE";
  for (int byte = 0; byte < 256; ++byte) file["model"]["vocab"][byte_character(byte)] = byte;
  file["model"]["merges"] = Json::array();
  auto tokenizer = api::tokenizer::Tokenizer::from_json(dump_json(file));
  CHECK(tokenizer.ok(), tokenizer.status().ToString());
  return *std::move(tokenizer);
}

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
  static const auto kTokenizer = make_tokenizer();
  const ControlTokens control{
      .end_of_sequence = 259, .think_begin = 257, .think_end = 258, .dsml = 256};
  OutputParser parser(*kTokenizer, control, options);
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
    options.calls.unknown_tool = UnknownTool::kReject;
    options.calls.parallel_calls = ParallelCalls::kOnlyOne;
  }
  if (options.stage == Stage::kToolBlock) options.markup = Markup::kCalls;
  std::vector<TokenId> ids;
  for (std::size_t i = 1; i < size; ++i) {
    if (data[i] == 0xFF && i + 1 < size) {
      ids.push_back(256 + data[++i] % static_cast<TokenId>(kControls.size()));
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
