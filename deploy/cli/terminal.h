#pragma once

#include <string>
#include <string_view>

namespace millrace::deploy::cli {

/// Whether standard output and standard error are terminals that understand colours and cursor
/// movement. Read once, by main.
struct Terminal {
  bool is_output_terminal = false;
  bool is_error_terminal = false;
  bool is_input_terminal = false;
  bool has_colour = false;  ///< on standard output

  /// Looks at the descriptors and at TERM and NO_COLOR.
  static Terminal detect();

  /// The text in a fainter, bold, red or green font where standard output has colours.
  std::string dim(std::string_view text) const;
  std::string bold(std::string_view text) const;
  std::string red(std::string_view text) const;
  std::string green(std::string_view text) const;
};

/// One line of standard error that says how far something is, rewritten in place. Writes nothing
/// where standard error is no terminal. Gone when the object is.
class ProgressLine {
 public:
  explicit ProgressLine(const Terminal& terminal) : is_active_(terminal.is_error_terminal) {}
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(std::string_view text);
  void clear();

 private:
  bool is_active_;
  std::string shown_;
};

/// "[#####.....]", `width` characters between the brackets.
std::string progress_bar(double fraction, int width);

/// Prints to standard error as "millrace: <message>".
void print_error(std::string_view message);

}  // namespace millrace::deploy::cli
