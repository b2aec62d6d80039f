#pragma once

#include <string>
#include <string_view>

#include "api/recipe/output.h"
#include "api/tokenizer/tokenizer.h"
#include "common/json_fwd.h"

namespace millrace::api::recipe {

/// One server-sent event: "data: ...", a blank line.
std::string data_event(const Json& value);

/// One with a name, which is its `type`: "event: ...", "data: ...", a blank line.
std::string named_event(const Json& value);

inline constexpr std::string_view kDoneEvent = "data: [DONE]\n\n";

/// The usage object that Chat Completions and Completions share.
Json usage_json(const Usage& usage);

/// "stop", "length" or "tool_calls".
std::string_view finish_reason_name(FinishReason reason);

/// A token as text for a log-probability entry; bytes that are no UTF-8 become U+FFFD.
std::string token_text(const tokenizer::Tokenizer& tokenizer, TokenId id);

}  // namespace millrace::api::recipe
