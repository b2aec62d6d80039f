#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "api/recipe/conversation.h"
#include "api/recipe/deployment.h"
#include "api/recipe/tool_call_parser.h"

namespace millrace::api::recipe {

/// How the answer's reasoning is told.
enum class ReasoningForm {
  kText,     ///< as it is
  kSummary,  ///< as its own summary, for clients that show nothing else
};

/// A decoded Responses request.
struct ResponsesRequest {
  Conversation conversation;
  ParallelCalls parallel_calls = ParallelCalls::kAllowed;
  Sampling sampling;
  bool is_streamed = false;
  bool is_background = false;
  bool is_stored = true;
  ReasoningForm reasoning_form = ReasoningForm::kText;
  bool seals_reasoning = false;        ///< items of reasoning carry `encrypted_content`
  std::set<std::string> custom_tools;  ///< names of tools whose input is text, not JSON
  std::string user_id;                 ///< `safety_identifier`, else `user`: whom the caller serves
  std::string input_items;             ///< JSON list: everything that the answer continues
  std::string echo;                    ///< JSON object: what the response repeats of the request
};

/// What a body is read with.
struct ResponsesBody {
  std::string_view text;
  std::string_view request_id;  ///< for ids of items that have none
  /// JSON list: the items that the response of `previous_response_id` continued, and its own.
  std::optional<std::string_view> earlier_items;
};

/// Decodes and validates a body. Known fields with unknown values are refused by name, unknown
/// fields are ignored, and so are tools that the hosted API would run itself. Instructions of an
/// earlier response are not inherited. What this server does not do yet (`conversation`, prompt
/// templates, JSON schemas for the answer, images) is refused rather than forgotten.
/// Errors: kInvalidArgument, kNotFound (model), with the field's name.
absl::StatusOr<ResponsesRequest> parse_responses_request(const ResponsesBody& body,
                                                         const Deployment& deployment);

/// The `previous_response_id` of a body; empty when there is none, and when the body is not JSON,
/// which parse_responses_request() tells.
std::string previous_response_id(std::string_view body);

}  // namespace millrace::api::recipe
