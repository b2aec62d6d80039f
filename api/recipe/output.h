#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/types.h"

namespace millrace::api::recipe {

/// Where in its answer the model begins: the prompt's header decides.
enum class Stage {
  kReasoning,
  kAnswer,
  kToolBlock,  ///< behind the opening of a tool block
};

/// As programs and people are told it: reasoning, answer or tool_block.
const char* stage_name(Stage stage);

/// A token that the engine sampled, with what it knows about the alternatives.
struct GeneratedToken {
  TokenId id = -1;
  float logprob = 0;                           ///< natural log, before temperature and filters
  std::vector<std::pair<TokenId, float>> top;  ///< most likely first; as many as were asked for
};

/// What happens to tool calls, in order: each begins with its name, gets its arguments in pieces
/// whose concatenation is one JSON object, and ends. A call that has not ended when the output is
/// over is not to be executed.
struct ToolEvent {
  enum class Kind { kBegin, kArguments, kEnd };
  Kind kind = Kind::kBegin;
  std::string text;  ///< of kBegin the full name, of kArguments a piece of JSON

  bool operator==(const ToolEvent&) const = default;
};

/// A piece of output, parsed: what a client may be sent now, in the order of the members.
struct OutputDelta {
  std::uint32_t choice = 0;  ///< of which of the request's answers, counted from 0
  std::string reasoning;
  std::string text;
  std::vector<GeneratedToken> text_tokens;  ///< tokens whose first byte lies in `text`
  std::vector<ToolEvent> tool_events;
  std::vector<TokenId> ids;  ///< all tokens that arrived, in order

  bool is_empty() const {
    return reasoning.empty() && text.empty() && text_tokens.empty() && tool_events.empty() &&
           ids.empty();
  }
};

enum class FinishReason { kStop, kLength, kToolCalls };

/// How an answer ended: the reason, and the stop string when one was found.
struct Ending {
  // Implicit: most endings are a reason and nothing else.
  // NOLINTNEXTLINE(google-explicit-constructor)
  Ending(FinishReason finish_reason, std::string stop_string = {})
      : reason(finish_reason), stop(std::move(stop_string)) {}

  FinishReason reason = FinishReason::kStop;
  std::string stop;
  std::uint32_t choice = 0;
};

/// One whole answer.
struct Choice {
  OutputDelta output;
  Ending ending = FinishReason::kStop;
};

/// Tokens of a request with all its answers; prompt tokens count once.
struct Usage {
  std::uint32_t prompt_tokens = 0;
  std::uint32_t completion_tokens = 0;
  std::uint32_t reasoning_tokens = 0;  ///< of the completion tokens
  std::uint32_t cached_tokens = 0;     ///< of the prompt tokens: those nobody had to compute
};

}  // namespace millrace::api::recipe
