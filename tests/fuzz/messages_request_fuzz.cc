#include <cstddef>
#include <cstdint>
#include <string_view>

#include "api/recipe/messages_request.h"
#include "api/recipe/prompt.h"
#include "common/check.h"

/// Messages bodies: refused with a message, or decoded to a conversation that has messages and a
/// prompt; whether a limit must be given decides nothing else.

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace::api::recipe;
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  const auto counted = parse_messages_request(body, "nano", Thinking::kOn, MaxTokens::kOptional);
  const auto request = parse_messages_request(body, "nano", Thinking::kOn, MaxTokens::kRequired);
  if (!counted.ok()) {
    CHECK(!request.ok() && !counted.status().message().empty());
    return 0;
  }
  CHECK(request.ok() == counted->sampling.max_tokens.has_value());
  CHECK(!counted->conversation.messages.empty());
  const auto prompt = render(counted->conversation);
  CHECK(prompt.ok() && prompt->segments.front().is_control);
  return 0;
}
