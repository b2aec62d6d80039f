#include "api/recipe/custom_input.h"

#include <algorithm>
#include <utility>

#include "api/recipe/json_text.h"
#include "common/str_cat.h"

namespace millrace::api::recipe {
namespace {

/// How the parser of tool calls begins an object whose first value is a string of this name.
constexpr std::string_view kOpening = "{\"input\": \"";
constexpr std::size_t kEscapeBytes = 6;  // of \uXXXX

bool is_high_surrogate(std::string_view escape) {
  constexpr std::string_view kDigits = "89abAB";
  return escape[1] == 'u' && (escape[2] == 'd' || escape[2] == 'D') &&
         kDigits.find(escape[3]) != std::string_view::npos;
}

/// Bytes of the escape at the beginning of a text; 0 when it is not complete.
std::size_t escape_size(std::string_view text) {
  if (text.size() < 2) return 0;
  if (text[1] != 'u') return 2;
  if (text.size() < kEscapeBytes) return 0;
  if (!is_high_surrogate(text)) return kEscapeBytes;
  return text.size() < 2 * kEscapeBytes ? 0 : 2 * kEscapeBytes;
}

}  // namespace

std::string CustomInput::push(std::string_view json) {
  if (state_ == State::kBehind) return {};
  held_ += json;
  if (state_ == State::kOpening && !take_opening()) return {};
  return state_ == State::kString ? take_string() : std::string();
}

/// False while it cannot be told what the arguments begin with.
bool CustomInput::take_opening() {
  const std::size_t size = std::min(held_.size(), kOpening.size());
  if (held_.compare(0, size, kOpening, 0, size) != 0) {
    state_ = State::kOther;
  } else if (size == kOpening.size()) {
    state_ = State::kString;
    held_.erase(0, size);
  }
  return state_ != State::kOpening;
}

/// Everything up to the string's end, or to an escape that is not complete.
std::string CustomInput::take_string() {
  std::size_t end = 0;
  while (end < held_.size() && held_[end] != '"') {
    const std::size_t size =
        held_[end] == '\\' ? escape_size(std::string_view(held_).substr(end)) : 1;
    if (size == 0) break;
    end += size;
  }
  const bool is_over = end < held_.size() && held_[end] == '"';
  // The parser lets nothing but JSON through, so that this has a value.
  std::string text = string_value(str_cat("\"", held_.substr(0, end), "\"")).value_or("");
  held_.erase(0, end);
  if (is_over) state_ = State::kBehind;
  return text;
}

std::string CustomInput::finish() {
  return state_ == State::kOther || state_ == State::kOpening ? std::exchange(held_, {})
                                                              : std::string();
}

}  // namespace millrace::api::recipe
