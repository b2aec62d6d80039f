#pragma once

#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "api/recipe/conversation.h"
#include "api/recipe/deployment.h"
#include "api/recipe/prepared_request.h"
#include "api/recipe/tool_call_parser.h"

namespace millrace::api::recipe {

/// A request that is decoded and validated, and not rendered yet. It may have images, which a
/// PrepareFunction refuses.
struct DecodedRequest {
  Conversation conversation;
  ParallelCalls parallel_calls = ParallelCalls::kAllowed;
  Sampling sampling;
  bool is_streamed = false;
};

/// Pure; errors as those of a PrepareFunction.
using DecodeFunction = absl::StatusOr<DecodedRequest> (*)(std::string_view body,
                                                          const Deployment& deployment);

/// A protocol of conversations.
struct Protocol {
  std::string_view name;  ///< for people: "chat"
  std::string_view path;  ///< where it is served
  DecodeFunction decode;
  PrepareFunction prepare;
};

std::span<const Protocol> all_protocols();

/// kInvalidArgument lists the names when there is none of this one.
absl::StatusOr<const Protocol*> find_protocol(std::string_view name);

}  // namespace millrace::api::recipe
