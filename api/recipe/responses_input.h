#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "api/recipe/conversation.h"
#include "api/recipe/image_reference.h"
#include "common/json_fwd.h"

namespace millrace::api::recipe {

/// What a Responses conversation is made of.
struct ResponsesInput {
  std::optional<std::string> instructions;  ///< the first system message
  const Json& earlier;                      ///< items of the response that is continued
  const Json& items;                        ///< of this request
};

/// Items as messages (responses_items.h makes the lists). Reasoning, an assistant message and calls
/// that follow each other are one turn. Every call needs one output; items between a group of calls
/// and their outputs are accepted and take their place behind the group. A call that was cut off
/// (status `incomplete`) and has no output is left out.
/// Errors: kInvalidArgument, with the field's name.
absl::StatusOr<std::vector<Message>> read_responses_input(const ResponsesInput& input,
                                                          ImageReader& images);

/// Reasoning in a form that clients hand back without looking into it, for those that keep nothing
/// else of it between requests. It hides nothing: the reasoning itself is in the same item.
std::string seal_reasoning(const std::string& reasoning);

/// What seal_reasoning() was given; nullopt for what it did not make.
std::optional<std::string> unseal_reasoning(const std::string& sealed);

}  // namespace millrace::api::recipe
