#include "api/recipe/json_validator.h"

namespace millrace::api::recipe {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

}  // namespace

constexpr JsonValidator::StepTable::StepTable() {
  for (Row& row : rows) row.fill(State::kDecide);
  for (const State state : {State::kNameString, State::kString}) {
    for (unsigned byte = 0x20; byte < 256; ++byte) of(state)[byte] = state;
    of(state)['\\'] = State::kDecide;
  }
  of(State::kNameString)['"'] = State::kColon;
  of(State::kString)['"'] = State::kAfter;
  for (const State state :
       {State::kFirstName, State::kName, State::kColon, State::kFirstValue, State::kValue}) {
    for (const char space : {' ', '\t', '\n', '\r'}) {
      of(state)[static_cast<unsigned char>(space)] = state;
    }
  }
  of(State::kFirstName)['"'] = of(State::kName)['"'] = State::kNameString;
  of(State::kColon)[':'] = State::kValue;
  for (const State state : {State::kFirstValue, State::kValue}) {
    of(state)['"'] = State::kString;
    for (unsigned char digit = '1'; digit <= '9'; ++digit) of(state)[digit] = State::kWhole;
  }
  for (unsigned char digit = '0'; digit <= '9'; ++digit) {
    of(State::kWhole)[digit] = State::kWhole;
    of(State::kPoint)[digit] = of(State::kFraction)[digit] = State::kFraction;
  }
  of(State::kWhole)['.'] = State::kPoint;
}

constinit const JsonValidator::StepTable JsonValidator::kSteps;

bool JsonValidator::push(char byte) {
  switch (state_) {
    case State::kNameString:
    case State::kString:
      if (byte == '"') {
        state_ = state_ == State::kNameString ? State::kColon : State::kAfter;
      } else if (byte == '\\') {
        is_name_ = state_ == State::kNameString;
        state_ = State::kEscape;
      }
      return static_cast<unsigned char>(byte) >= 0x20;
    case State::kEscape:
      state_ = byte == 'u' ? State::kHex : interrupted();
      hex_left_ = 4;
      code_ = 0;
      if (needs_low_ && byte != 'u') return false;
      return std::string_view("\"\\/bfnrtu").find(byte) != std::string_view::npos;
    case State::kHex:
      return push_hex(byte);
    case State::kLowSurrogate:
      state_ = State::kEscape;
      return byte == '\\';
    case State::kLiteral:
      if (rest_.front() != byte) return false;
      rest_.remove_prefix(1);
      if (rest_.empty()) state_ = State::kAfter;
      return true;
    case State::kMinus:
    case State::kZero:
    case State::kWhole:
    case State::kPoint:
    case State::kFraction:
    case State::kExponent:
    case State::kExponentSign:
    case State::kPower:
      return push_number(byte);
    default:
      break;
  }
  if (is_space(byte)) return true;
  switch (state_) {
    case State::kFirstValue:
      return byte == ']' ? close(false) : begin_value(byte);
    case State::kFirstName:
      if (byte == '}') return close(true);
      [[fallthrough]];
    case State::kName:
      state_ = State::kNameString;
      return byte == '"';
    case State::kColon:
      state_ = State::kValue;
      return byte == ':';
    case State::kAfter:
      return after_value(byte);
    default:
      return begin_value(byte);
  }
}

/// Of a \u escape. Surrogates stand in pairs: parsers refuse one that stands alone.
bool JsonValidator::push_hex(char byte) {
  if (!is_hex(byte)) return false;
  code_ =
      code_ << 4 | static_cast<unsigned>(is_digit(byte) ? byte - '0' : (byte | 0x20) - 'a' + 10);
  if (--hex_left_ > 0) return true;
  const bool is_low = code_ >= 0xDC00 && code_ < 0xE000;
  if (is_low != needs_low_) return false;
  needs_low_ = code_ >= 0xD800 && code_ < 0xDC00;
  state_ = needs_low_ ? State::kLowSurrogate : interrupted();
  return true;
}

bool JsonValidator::begin_value(char byte) {
  const auto literal = [this](std::string_view rest) {
    rest_ = rest;
    state_ = State::kLiteral;
    return true;
  };
  switch (byte) {
    case '{':
      return open(true);
    case '[':
      return open(false);
    case '"':
      state_ = State::kString;
      return true;
    case 't':
      return literal("rue");
    case 'f':
      return literal("alse");
    case 'n':
      return literal("ull");
    case '-':
      state_ = State::kMinus;
      return true;
    case '0':
      state_ = State::kZero;
      return true;
    default:
      state_ = State::kWhole;
      return is_digit(byte);
  }
}

bool JsonValidator::push_number(char byte) {
  const auto go = [this](State state) {
    state_ = state;
    return true;
  };
  if (is_digit(byte)) {
    switch (state_) {
      case State::kMinus:
        return go(byte == '0' ? State::kZero : State::kWhole);
      case State::kZero:
        return false;
      case State::kPoint:
        return go(State::kFraction);
      case State::kExponent:
      case State::kExponentSign:
        return go(State::kPower);
      default:
        return true;
    }
  }
  const bool is_whole = state_ == State::kZero || state_ == State::kWhole;
  if (byte == '.' && is_whole) return go(State::kPoint);
  if ((byte == 'e' || byte == 'E') && (is_whole || state_ == State::kFraction)) {
    return go(State::kExponent);
  }
  if ((byte == '+' || byte == '-') && state_ == State::kExponent) return go(State::kExponentSign);
  if (!is_whole && state_ != State::kFraction && state_ != State::kPower) return false;
  state_ = State::kAfter;
  return is_space(byte) || after_value(byte);
}

bool JsonValidator::after_value(char byte) {
  if (depth_ == 0) return false;
  const bool is_object = is_object_[depth_ - 1];
  if (byte == ',') {
    state_ = is_object ? State::kName : State::kValue;
    return true;
  }
  return (byte == '}' && close(true)) || (byte == ']' && close(false));
}

bool JsonValidator::open(bool is_object) {
  if (depth_ == kMaxDepth) return false;
  is_object_[depth_++] = is_object;
  state_ = is_object ? State::kFirstName : State::kFirstValue;
  return true;
}

bool JsonValidator::close(bool is_object) {
  if (depth_ == 0 || is_object_[depth_ - 1] != is_object) return false;
  --depth_;
  state_ = State::kAfter;
  return true;
}

bool JsonValidator::is_complete() const {
  if (depth_ > 0) return false;
  return state_ == State::kAfter || state_ == State::kZero || state_ == State::kWhole ||
         state_ == State::kFraction || state_ == State::kPower;
}

}  // namespace millrace::api::recipe
