#pragma once

#include <cstddef>
#include <cstdint>

#include "api/recipe/prepared_request.h"

namespace millrace::tests::fuzz {

/// A body of a protocol: refused with a message, or prepared with a prompt that begins as every
/// prompt does, control tokens of no other kind than the renderer's, and an encoder that writes
/// JSON for an answer with reasoning, text and a tool call.
void check_request(api::recipe::PrepareFunction prepare, const std::uint8_t* data,
                   std::size_t size);

}  // namespace millrace::tests::fuzz
