#pragma once

#include "absl/status/status.h"
#include "common/json_fwd.h"

namespace millrace::api::recipe {

/// Puts what vLLM's and SGLang's clients say in other words into the words of the protocol, in a
/// Chat Completions body: `chat_template_kwargs` (`thinking` or `enable_thinking`,
/// `reasoning_effort`; the body's own fields win) and `continue_final_message`, which is `prefix`
/// of the last message. What cannot be put so is refused: an answer without its header, reasoning
/// within the answer's text. Errors: kInvalidArgument with the field's name.
absl::Status translate_dialects(Json& body);

}  // namespace millrace::api::recipe
