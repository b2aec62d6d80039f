#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "api/recipe/json_object_filter.h"
#include "api/recipe/markup_tags.h"
#include "api/recipe/output.h"
#include "api/recipe/prompt.h"
#include "api/recipe/stop_matcher.h"
#include "api/recipe/tool_call_parser.h"
#include "api/tokenizer/tokenizer.h"
#include "api/tokenizer/utf8_stream.h"

namespace millrace::api::recipe {

/// What tool markup in the output means.
enum class Markup {
  kText,   ///< nothing: no tools were offered
  kCalls,  ///< tool calls
};

/// Newlines around `</think>` and at the beginning of reasoning.
enum class ThinkNewlines {
  kKeep,  ///< the release's parser
  kDrop,  ///< deepseek-recipe
};

/// Newlines in front of a tool block.
enum class BlockNewlines {
  kBlankLine,  ///< exactly two are the separator (the release's parser)
  kAll,        ///< deepseek-recipe
};

/// Text around the object of an answer in JSON mode.
enum class JsonText {
  kObjectOnly,   ///< deepseek-recipe: becomes spaces
  kAsGenerated,  ///< stays
};

/// How an answer is to be read. Where sources disagree every behaviour has a name; the defaults and
/// their reasons are in docs/decisions.md.
struct ParseOptions {
  Stage stage = Stage::kAnswer;
  std::vector<std::string> stops;
  bool keeps_stop = false;  ///< the stop string that was found belongs to the answer
  Markup markup = Markup::kText;
  ToolCallOptions calls;
  ThinkNewlines think_newlines = ThinkNewlines::kKeep;
  BlockNewlines block_newlines = BlockNewlines::kBlankLine;
  bool is_json = false;  ///< the answer is to be a JSON object
  JsonText json_text = JsonText::kObjectOnly;
};

/// Turns an engine's tokens into what clients are told: reasoning up to the token `</think>`, then
/// the answer, then tool calls. One state machine; the events do not depend on how tokens are
/// grouped into calls, nor on how text is cut into tokens.
///
/// Control tokens count by id only: the same spelling in ordinary tokens is text. The
/// end-of-sequence token never becomes text. Incomplete code points are held back; one that the end
/// of output cuts off is dropped. `<think>` as the very first token and `</think>` inside the
/// answer are dropped. Stop strings are looked for in the answer only.
///
/// A tool block (or a call without one) may begin in the answer or in reasoning; the marker alone,
/// or in front of anything but a known tag, is text. Behind the block nothing is read any more.
/// Not thread-safe.
class OutputParser {
 public:
  /// The tokenizer must outlive the parser.
  OutputParser(const tokenizer::Tokenizer& tokenizer, const ControlTokens& control,
               ParseOptions options);

  /// Appends to `delta` what may go out now. Ignored once is_done().
  void push(const GeneratedToken& token, OutputDelta& delta);

  /// The output is over, for the engine's reason: appends what was held back and tells the reason
  /// that clients get. A call that was cut off or went wrong is never reported as kToolCalls.
  FinishReason finish(FinishReason reason, OutputDelta& delta);

  /// More tokens would change nothing: a stop string was found, or the tool block is over.
  bool is_done() const { return is_stopped() || (stage_ == Stage::kToolBlock && calls_.is_over()); }
  const std::string& matched_stop() const { return matcher_.matched(); }
  /// Tokens of the reasoning so far, its closing token included.
  std::uint32_t reasoning_tokens() const { return reasoning_tokens_; }
  CallProblem problem() const { return calls_.problem(); }

 private:
  struct PendingToken {
    std::size_t first_byte = 0;  ///< in the answer's text
    GeneratedToken token;
  };
  /// What is held back in front of a possible tool block.
  enum class Hold {
    kNewlines,    // newlines_ of them, perhaps none
    kTag,         // ... and held_, the beginning of a tag
    kBehindOpen,  // ... and held_, which ends in a block's opening tag and white space
  };
  bool is_stopped() const { return !matcher_.matched().empty(); }
  bool reads_calls() const { return options_.markup == Markup::kCalls && !is_text_only_; }
  bool is_text_after_all() const;
  void push_outside(const GeneratedToken& token, std::string_view bytes, bool is_first,
                    OutputDelta& delta);
  void push_call(std::string_view bytes, OutputDelta& delta);
  void take_back_block(std::string_view rest, OutputDelta& delta);
  void push_think_end(OutputDelta& delta);
  void push_text(std::string_view bytes, OutputDelta& delta);
  void push_marker(std::string_view spelling, OutputDelta& delta);
  bool holds_newlines() const;
  void take(int symbol, std::string_view spelling, OutputDelta& delta);
  void take_tag(int symbol, std::string_view spelling, OutputDelta& delta);
  void hold_newline(OutputDelta& delta);
  void release(OutputDelta& delta);
  void enter_block(OutputDelta& delta);
  void send(std::string_view bytes, OutputDelta& delta);
  void release_tokens(std::size_t text_before, OutputDelta& delta);

  const tokenizer::Tokenizer& tokenizer_;
  const ControlTokens control_;
  const ParseOptions options_;
  Stage stage_;
  StopMatcher matcher_;
  ToolCallParser calls_;
  tokenizer::Utf8Stream utf8_;
  JsonObjectFilter json_;
  bool is_first_ = true;
  bool drops_newlines_ = false;  // at the beginning of a stage
  std::uint32_t reasoning_tokens_ = 0;

  Hold hold_ = Hold::kNewlines;
  std::size_t newlines_ = 0;
  std::string held_;
  int tag_state_ = TagSet::kRoot;
  std::size_t space_behind_open_ = 0;
  bool is_behind_open_ = false;  // held_ contains a block's opening tag

  Stage stage_before_block_ = Stage::kToolBlock;
  std::string block_opening_;  // what enter_block() took for markup
  bool is_text_only_ = false;  // see UnknownTool::kAsText

  std::size_t answer_bytes_ = 0;      // decoded, whether released or held back by the matcher
  std::size_t released_bytes_ = 0;    // gone out
  std::deque<PendingToken> pending_;  // tokens whose first byte has not gone out
};

}  // namespace millrace::api::recipe
