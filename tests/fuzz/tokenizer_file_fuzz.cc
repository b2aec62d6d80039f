#include <cstddef>
#include <cstdint>
#include <string_view>

#include "api/tokenizer/tokenizer.h"
#include "common/check.h"

/// tokenizer.json: refused with a message, or a tokenizer whose tokens spell the text again.

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = millrace::api::tokenizer::Tokenizer::from_json(json);
  if (!tokenizer.ok()) {
    CHECK(!tokenizer.status().message().empty());
    return 0;
  }
  const auto ids = (*tokenizer)->encode_text("a ab\xC3\xA9 12");
  if (ids.ok()) {
    for (const millrace::TokenId id : *ids) CHECK(id >= 0 && id < (*tokenizer)->id_bound());
  }
  return 0;
}
