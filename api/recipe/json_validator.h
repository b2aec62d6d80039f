#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
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

 private:
  enum class State : std::uint8_t {
    kValue,       // a value must come
    kFirstValue,  // ... or the end of an empty list
    kName,        // a member's name must come
    kFirstName,   // ... or the end of an empty object
    kColon,       // behind a name
    kAfter,       // behind a value
    kNameString,  // inside a member's name
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
    kDecide,  // never a state: push() must find the next one
  };
  /// The next state of every pair of state and byte that tells it alone; kDecide where nesting, an
  /// escape or a violation is at stake. One read a byte takes half the time of push()'s switches.
  struct StepTable {
    using Row = std::array<State, 256>;

    constexpr StepTable();
    constexpr Row& of(State state) { return rows[static_cast<std::size_t>(state)]; }

    std::array<Row, static_cast<std::size_t>(State::kDecide)> rows{};
  };
  static const StepTable kSteps;

  State interrupted() const { return is_name_ ? State::kNameString : State::kString; }
  bool push_hex(char byte);
  bool begin_value(char byte);
  bool push_number(char byte);
  bool after_value(char byte);
  bool open(bool is_object);
  bool close(bool is_object);

  State state_ = State::kValue;
  std::bitset<kMaxDepth> is_object_;  // of the levels that are open, outermost first
  std::size_t depth_ = 0;
  bool is_name_ = false;  // the string that an escape interrupts is a member's name
  int hex_left_ = 0;
  unsigned code_ = 0;       // of the \u escape so far
  bool needs_low_ = false;  // the first half of a surrogate pair has come
  std::string_view rest_;
};

inline std::size_t JsonValidator::push_value(std::string_view bytes) {
  State state = state_;  // in a register: to the compiler, the bytes read could be the member
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    const State next =
        kSteps.rows[static_cast<std::size_t>(state)][static_cast<unsigned char>(bytes[at])];
    if (next != State::kDecide) [[likely]] {
      state = next;
      continue;
    }
    state_ = state;
    if ((depth_ == 0 && state == State::kAfter) || !push(bytes[at])) return at;
    state = state_;
  }
  state_ = state;
  return bytes.size();
}

}  // namespace millrace::api::recipe
