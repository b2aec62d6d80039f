#pragma once

#include <string>
#include <string_view>

#include "api/recipe/json_validator.h"
#include "api/tokenizer/utf8_stream.h"

namespace millrace::api::recipe {

/// One argument of a tool call: bytes as the model writes them in, JSON out as early as it is
/// certain.
///
/// A string is escaped piece by piece. Anything else is passed through under a validator: lists,
/// objects and JSON strings at once; numbers and literals when they are whole. What turns out not
/// to be JSON before anything has gone out becomes a string. Holds at most kMaxHeld bytes; what
/// cannot be told within them is a string.
class ArgumentValue {
 public:
  enum class Type { kString, kJson };
  static constexpr std::size_t kMaxHeld = 1024;

  explicit ArgumentValue(Type type = Type::kString);

  /// Appends to `json` what may go out. False when what has gone out already cannot be continued.
  bool push(std::string_view bytes, std::string& json);

  /// The value is over; appends the rest. False as in push(), or when the value is not whole.
  bool finish(std::string& json);

  /// A list, an object or a JSON string that is whole: only white space may follow.
  bool is_complete() const { return mode_ == Mode::kStream && validator_.is_complete(); }

 private:
  enum class Mode {
    kUndecided,  // white space so far
    kHeld,       // a number or a literal
    kStream,     // a list, an object or a JSON string
    kString,
  };
  bool push_any(std::string_view bytes, std::string& json);
  void push_undecided(char byte, std::string& json);
  bool may_follow(std::string_view bytes) const;
  void begin_string(std::string& json);
  void push_string(std::string_view bytes, std::string& json);

  Mode mode_;
  std::string held_;  // of kUndecided and kHeld
  JsonValidator validator_;
  tokenizer::Utf8Stream utf8_;
  std::string scratch_;
  bool has_begun_ = false;  // of a string: the quote has gone out
};

inline bool ArgumentValue::push(std::string_view bytes, std::string& json) {
  if (mode_ == Mode::kStream) {
    const std::size_t end = validator_.push_value(bytes);
    utf8_.push(bytes.substr(0, end), json);
    return end == bytes.size() || may_follow(bytes.substr(end));
  }
  bool is_plain = mode_ == Mode::kString && has_begun_;
  for (const char byte : bytes) {
    is_plain &= static_cast<unsigned char>(byte) >= 0x20 && byte != '"' && byte != '\\';
  }
  if (!is_plain) return push_any(bytes, json);
  utf8_.push(bytes, json);
  return true;
}

}  // namespace millrace::api::recipe
