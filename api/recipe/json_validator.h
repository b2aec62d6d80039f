#pragma once

#include <bitset>
#include <cstddef>
#include <string_view>

namespace millrace::api::recipe {

/// Checks that bytes which arrive one after another form one JSON value. Constant work per byte;
/// nesting deeper than kMaxDepth is a violation. What a string contains is not checked for UTF-8.
class JsonValidator {
 public:
  static constexpr std::size_t kMaxDepth = 512;

  /// False when the bytes so far, this one included, begin no JSON value. White space around the
  /// value is accepted. Not to be called again after false.
  bool push(char byte);

  /// Takes bytes up to the value's end (not the end of a number, which could grow) or up to the
  /// first that push() would refuse. Returns how many were taken; fewer than given and no whole
  /// value means that the next byte was refused.
  std::size_t push_value(std::string_view bytes);

  /// The bytes so far are a whole value. Only a number can still grow.
  bool is_complete() const;
  /// Inside a string, where any byte but a control character is welcome.
  bool is_in_string() const { return state_ == State::kString; }

 private:
  enum class State {
    kValue,       // a value must come
    kFirstValue,  // ... or the end of an empty list
    kName,        // a member's name must come
    kFirstName,   // ... or the end of an empty object
    kColon,       // behind a name
    kAfter,       // behind a value
    kString,
    kEscape,
    kHex,
    kLowSurrogate,  // the escape of the pair's second half must come
    kLiteral,       // rest_ must come
    kMinus,
    kZero,
    kWhole,
    kPoint,
    kFraction,
    kExponent,
    kExponentSign,
    kPower,
  };
  bool push_hex(char byte);
  bool begin_value(char byte);
  bool push_number(char byte);
  bool after_value(char byte);
  bool open(bool is_object);
  bool close(bool is_object);

  State state_ = State::kValue;
  std::bitset<kMaxDepth> is_object_;  // of the levels that are open, outermost first
  std::size_t depth_ = 0;
  bool is_name_ = false;  // the string is a member's name
  int hex_left_ = 0;
  unsigned code_ = 0;       // of the \u escape so far
  bool needs_low_ = false;  // the first half of a surrogate pair has come
  std::string_view rest_;
};

}  // namespace millrace::api::recipe
