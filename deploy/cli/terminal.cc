#include "deploy/cli/terminal.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "common/str_cat.h"

namespace millrace::deploy::cli {
namespace {

std::string styled(bool has_colour, std::string_view code, std::string_view text) {
  if (!has_colour || text.empty()) return std::string(text);
  return str_cat("\x1b[", code, "m", text, "\x1b[0m");
}

}  // namespace

Terminal Terminal::detect() {
  const char* term = std::getenv("TERM");
  const char* no_colour = std::getenv("NO_COLOR");
  const bool is_dumb = term == nullptr || std::string_view(term) == "dumb";
  Terminal terminal;
  terminal.is_output_terminal = isatty(STDOUT_FILENO) == 1;
  terminal.is_error_terminal = isatty(STDERR_FILENO) == 1 && !is_dumb;
  terminal.is_input_terminal = isatty(STDIN_FILENO) == 1;
  terminal.has_colour = terminal.is_output_terminal && !is_dumb &&
                        (no_colour == nullptr || std::string_view(no_colour).empty());
  return terminal;
}

std::string Terminal::dim(std::string_view text) const { return styled(has_colour, "2", text); }
std::string Terminal::bold(std::string_view text) const { return styled(has_colour, "1", text); }
std::string Terminal::red(std::string_view text) const { return styled(has_colour, "31", text); }
std::string Terminal::green(std::string_view text) const { return styled(has_colour, "32", text); }

void ProgressLine::show(std::string_view text) {
  if (!is_active_ || text == shown_) return;
  shown_ = std::string(text);
  std::fprintf(stderr, "\r\x1b[K%s", shown_.c_str());
  std::fflush(stderr);
}

void ProgressLine::clear() {
  if (!is_active_ || shown_.empty()) return;
  shown_.clear();
  std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
}

std::string progress_bar(double fraction, int width) {
  const int filled = std::clamp(static_cast<int>(fraction * width), 0, width);
  return str_cat("[", std::string(static_cast<std::size_t>(filled), '#'),
                 std::string(static_cast<std::size_t>(width - filled), '.'), "]");
}

void print_error(std::string_view message) {
  std::fflush(stdout);
  std::fprintf(stderr, "millrace: %.*s\n", static_cast<int>(message.size()), message.data());
}

}  // namespace millrace::deploy::cli
