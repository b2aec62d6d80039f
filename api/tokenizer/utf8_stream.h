#pragma once

#include <string>
#include <string_view>

namespace millrace::api::tokenizer {

/// Turns a stream of bytes into valid UTF-8 text. Bytes of an incomplete code point are held back
/// until it is complete; each maximal invalid part becomes one U+FFFD, as the Unicode standard
/// recommends and as the reference decoder does. Not thread-safe.
class Utf8Stream {
 public:
  /// Appends the text that became complete.
  void push(std::string_view bytes, std::string& text) {
    // Most tokens are a few ASCII bytes.
    unsigned char high = 0;
    for (const char byte : bytes) high |= static_cast<unsigned char>(byte);
    if (high < 0x80 && held_.empty()) {
      text.append(bytes);
    } else {
      push_any(bytes, text);
    }
  }
  /// Ends the stream: a held incomplete code point becomes one U+FFFD.
  void finish(std::string& text);
  /// Bytes held back, 0 to 3.
  std::size_t held_bytes() const { return held_.size(); }

 private:
  void push_any(std::string_view bytes, std::string& text);

  std::string held_;
};

/// The byte offset of the first invalid sequence, or npos when text is valid UTF-8.
std::size_t find_invalid_utf8(std::string_view text);

}  // namespace millrace::api::tokenizer
