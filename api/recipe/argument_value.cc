#include "api/recipe/argument_value.h"

#include <algorithm>
#include <utility>

#include "api/recipe/json_text.h"

namespace millrace::api::recipe {
namespace {

constexpr std::string_view kSpace = " \t\n\r";

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

}  // namespace

ArgumentValue::ArgumentValue(Type type)
    : mode_(type == Type::kString ? Mode::kString : Mode::kUndecided) {}

bool ArgumentValue::push_any(std::string_view bytes, std::string& json) {
  while (!bytes.empty() && (mode_ == Mode::kUndecided || mode_ == Mode::kHeld)) {
    push_undecided(bytes.front(), json);
    bytes.remove_prefix(1);
  }
  if (bytes.empty()) return true;
  if (mode_ == Mode::kStream) return push(bytes, json);
  push_string(bytes, json);
  return true;
}

void ArgumentValue::push_undecided(char byte, std::string& json) {
  const bool is_valid = validator_.push(byte);
  const bool is_first = mode_ == Mode::kUndecided && kSpace.find(byte) == std::string_view::npos;
  if (is_first && is_valid && (byte == '{' || byte == '[' || byte == '"')) {
    mode_ = Mode::kStream;
    held_.clear();
    json.push_back(byte);
    return;
  }
  held_.push_back(byte);
  if (!is_valid || held_.size() > kMaxHeld) {
    begin_string(json);
  } else if (is_first) {
    mode_ = Mode::kHeld;
  }
}

/// White space behind a value that is passed through is not part of it.
bool ArgumentValue::may_follow(std::string_view bytes) const {
  return validator_.is_complete() && trimmed(bytes).empty();
}

void ArgumentValue::begin_string(std::string& json) {
  mode_ = Mode::kString;
  push_string(std::exchange(held_, {}), json);
}

void ArgumentValue::push_string(std::string_view bytes, std::string& json) {
  if (!std::exchange(has_begun_, true)) json.push_back('"');
  const auto is_ascii = [](char byte) { return static_cast<unsigned char>(byte) < 0x80; };
  if (utf8_.held_bytes() == 0 && std::all_of(bytes.begin(), bytes.end(), is_ascii)) {
    append_escaped(bytes, json);
    return;
  }
  scratch_.clear();
  utf8_.push(bytes, scratch_);
  append_escaped(scratch_, json);
}

bool ArgumentValue::finish(std::string& json) {
  if (mode_ == Mode::kStream) return validator_.is_complete();
  if (mode_ == Mode::kHeld && validator_.is_complete()) {
    json.append(trimmed(held_));
    return true;
  }
  if (mode_ != Mode::kString) begin_string(json);
  push_string({}, json);
  scratch_.clear();
  utf8_.finish(scratch_);
  json.append(scratch_).push_back('"');
  return true;
}

}  // namespace millrace::api::recipe
