#include <cstddef>
#include <cstdint>
#include <string_view>

#include "api/recipe/chat_request.h"
#include "api/recipe/prompt.h"
#include "common/check.h"

/// Chat Completions bodies: refused with a message, or decoded to a conversation that has messages
/// and a prompt.

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  const auto request = millrace::api::recipe::parse_chat_request(
      body, "nano", 2048, millrace::api::recipe::Thinking::kOn);
  if (request.ok()) {
    CHECK(!request->conversation.messages.empty());
    const auto prompt = millrace::api::recipe::render(request->conversation);
    CHECK(prompt.ok() && prompt->segments.front().is_control);
  } else {
    CHECK(!request.status().message().empty());
  }
  return 0;
}
