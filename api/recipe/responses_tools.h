#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "api/recipe/fields.h"
#include "api/recipe/responses_request.h"

namespace millrace::api::recipe {

/// What a Responses body says about tools and their choice, into `request`: functions, namespaces
/// of functions, and custom tools, whose input is text. `raw_body` is the body's text, of which
/// schemas keep the exact numbers. Errors: kInvalidArgument, with the field's name.
absl::Status read_responses_tools(const Fields& body, std::string_view raw_body,
                                  ResponsesRequest& request);

}  // namespace millrace::api::recipe
