#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace millrace {

/// Lower-case hexadecimal text of bytes, two digits each.
inline std::string to_hex(std::span<const std::uint8_t> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (std::uint8_t byte : bytes) {
    text.push_back(kDigits[byte >> 4]);
    text.push_back(kDigits[byte & 15]);
  }
  return text;
}

/// Reads such a text, of either case, into exactly `bytes`; false, and `bytes` are of no use, when
/// it has another length or another character.
inline bool from_hex(std::string_view text, std::span<std::uint8_t> bytes) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  };
  if (text.size() != bytes.size() * 2) return false;
  for (std::size_t index = 0; index < bytes.size(); ++index) {
    const int high = digit(text[2 * index]);
    const int low = digit(text[2 * index + 1]);
    if (high < 0 || low < 0) return false;
    bytes[index] = static_cast<std::uint8_t>(high * 16 + low);
  }
  return true;
}

}  // namespace millrace
