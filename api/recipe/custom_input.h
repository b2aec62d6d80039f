#pragma once

#include <string>
#include <string_view>

namespace millrace::api::recipe {

/// The text that a custom tool is called with, out of the arguments that the model wrote for the
/// function it was shown: an object with one string, `input`. Text comes out as soon as it is
/// certain; arguments of any other form are the text themselves, as they are.
class CustomInput {
 public:
  /// A piece of the arguments; what it adds to the text.
  std::string push(std::string_view json);
  /// The arguments are over; the rest of the text.
  std::string finish();

 private:
  enum class State {
    kOpening,  // in front of the string
    kString,
    kBehind,  // the string is over
    kOther,   // another form
  };
  bool take_opening();
  std::string take_string();

  State state_ = State::kOpening;
  std::string held_;  // of an opening, or of an escape, that is not complete; all of another form
};

}  // namespace millrace::api::recipe
