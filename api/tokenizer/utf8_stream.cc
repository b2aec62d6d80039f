#include "api/tokenizer/utf8_stream.h"

#include <simdjson.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace millrace::api::tokenizer {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

enum class Scan { kComplete, kIncomplete, kInvalid };

struct ScanResult {
  Scan scan = Scan::kInvalid;
  std::size_t length = 0;  ///< bytes of the code point, or of the maximal invalid part
};

/// Number of bytes that a lead byte announces and the range of its second byte (Unicode, table
/// 3-7). 0 bytes: not a lead byte.
struct Lead {
  std::size_t length = 0;
  std::uint8_t second_low = 0x80;
  std::uint8_t second_high = 0xBF;
};

Lead lead_of(std::uint8_t byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xC2) return {0};
  if (byte < 0xE0) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};  // surrogates are not characters
  if (byte < 0xF0) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0};
}

ScanResult scan_one(std::string_view bytes) {
  const Lead lead = lead_of(static_cast<std::uint8_t>(bytes[0]));
  if (lead.length == 0) return {Scan::kInvalid, 1};
  for (std::size_t i = 1; i < lead.length; ++i) {
    if (i == bytes.size()) return {Scan::kIncomplete, i};
    const auto byte = static_cast<std::uint8_t>(bytes[i]);
    const std::uint8_t low = i == 1 ? lead.second_low : 0x80;
    const std::uint8_t high = i == 1 ? lead.second_high : 0xBF;
    if (byte < low || byte > high) return {Scan::kInvalid, i};
  }
  return {Scan::kComplete, lead.length};
}

/// The number of ASCII bytes at the beginning.
std::size_t ascii_prefix(std::string_view bytes) {
  constexpr std::uint64_t kHighBits = 0x8080808080808080;
  std::size_t at = 0;
  for (std::uint64_t word = 0; at + sizeof(word) <= bytes.size(); at += sizeof(word)) {
    std::memcpy(&word, bytes.data() + at, sizeof(word));
    if ((word & kHighBits) != 0) break;
  }
  while (at < bytes.size() && static_cast<std::uint8_t>(bytes[at]) < 0x80) ++at;
  return at;
}

}  // namespace

void Utf8Stream::push_any(std::string_view bytes, std::string& text) {
  // A held code point is completed, or found to be invalid, byte by byte.
  while (!held_.empty() && !bytes.empty()) {
    held_.push_back(bytes.front());
    const ScanResult result = scan_one(held_);
    if (result.scan == Scan::kInvalid) {
      // The byte is no part of it: the maximal invalid part is what was held before.
      text.append(kReplacement);
      held_.clear();
      break;
    }
    bytes.remove_prefix(1);
    if (result.scan == Scan::kComplete) {
      text.append(held_);
      held_.clear();
    }
  }
  while (!bytes.empty()) {
    const std::size_t valid = std::min(find_invalid_utf8(bytes), bytes.size());
    text.append(bytes.substr(0, valid));
    bytes.remove_prefix(valid);
    if (bytes.empty()) return;
    const ScanResult result = scan_one(bytes);
    if (result.scan == Scan::kIncomplete) {
      held_ = bytes;
      return;
    }
    text.append(kReplacement);
    bytes.remove_prefix(result.length);
  }
}

void Utf8Stream::finish(std::string& text) {
  if (!held_.empty()) text.append(kReplacement);
  held_.clear();
}

std::size_t find_invalid_utf8(std::string_view text) {
  // Nearly every text is valid, and vectors say so ten times as fast; where it is not, they are
  // mute.
  constexpr std::size_t kLongBytes = 256;
  if (text.size() >= kLongBytes && simdjson::validate_utf8(text.data(), text.size())) {
    return std::string_view::npos;
  }
  std::size_t at = 0;
  while (at < text.size()) {
    if (static_cast<std::uint8_t>(text[at]) < 0x80) {
      at += ascii_prefix(text.substr(at));
      continue;
    }
    const ScanResult result = scan_one(text.substr(at));
    if (result.scan != Scan::kComplete) return at;
    at += result.length;
  }
  return std::string_view::npos;
}

}  // namespace millrace::api::tokenizer
