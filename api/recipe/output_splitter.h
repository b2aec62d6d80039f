#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <vector>

#include "api/recipe/output.h"
#include "api/recipe/prompt.h"
#include "api/recipe/stop_matcher.h"
#include "api/tokenizer/tokenizer.h"
#include "api/tokenizer/utf8_stream.h"

namespace millrace::api::recipe {

/// Turns an engine's tokens into text for clients: reasoning up to the token `</think>`, then the
/// answer; stop strings are looked for in the answer. Markers count as tokens only: the same
/// spelling in ordinary tokens is text. The end-of-sequence token never becomes text.
///
/// Incomplete code points are held back; one that the end of output cuts off is dropped. `<think>`
/// as the very first token and `</think>` inside the answer are dropped.
/// The events do not depend on how tokens are grouped into calls. Not thread-safe.
class OutputSplitter {
 public:
  /// The tokenizer must outlive the splitter.
  OutputSplitter(const tokenizer::Tokenizer& tokenizer, const ControlTokens& control, Stage stage,
                 const std::vector<std::string>& stops);

  /// Appends to `delta` what may go out now. Ignored after a stop string was found.
  void push(const GeneratedToken& token, OutputDelta& delta);

  /// The output is over: appends what was held back as a possible stop string.
  void finish(OutputDelta& delta);

  bool is_stopped() const { return !matcher_.matched().empty(); }
  const std::string& matched_stop() const { return matcher_.matched(); }
  /// Tokens of the reasoning so far, its closing token included.
  std::uint32_t reasoning_tokens() const { return reasoning_tokens_; }

 private:
  struct PendingToken {
    std::size_t first_byte = 0;  ///< in the answer's text
    GeneratedToken token;
  };
  void push_reasoning(const GeneratedToken& token, OutputDelta& delta);
  void push_answer(const GeneratedToken& token, OutputDelta& delta);
  void release_tokens(std::size_t text_before, OutputDelta& delta);

  const tokenizer::Tokenizer& tokenizer_;
  const ControlTokens control_;
  Stage stage_;
  StopMatcher matcher_;
  tokenizer::Utf8Stream utf8_;
  bool is_first_ = true;
  std::uint32_t reasoning_tokens_ = 0;
  std::size_t answer_bytes_ = 0;      // decoded, whether released or held back
  std::size_t released_bytes_ = 0;    // gone out
  std::deque<PendingToken> pending_;  // tokens whose first byte has not gone out
};

}  // namespace millrace::api::recipe
