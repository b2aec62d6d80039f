#include "deploy/cli/sse_parser.h"

#include <utility>

#include "common/str_cat.h"

namespace millrace::deploy::cli {

absl::StatusOr<std::vector<std::string>> SseParser::feed(std::string_view piece) {
  std::vector<std::string> events;
  for (char c : piece) {
    // A line ends with CR, LF or CR LF, and the pair may be cut in two.
    const bool is_second_half = c == '\n' && follows_cr_;
    follows_cr_ = c == '\r';
    if (is_second_half) continue;
    if (c == '\n' || c == '\r') {
      end_line(events);
    } else {
      line_.push_back(c);
    }
    if (line_.size() + data_.size() > kMaxEventBytes) {
      return absl::ResourceExhaustedError(
          str_cat("the server sent an event of more than ", kMaxEventBytes, " bytes"));
    }
  }
  return events;
}

void SseParser::end_line(std::vector<std::string>& events) {
  const std::string line = std::exchange(line_, {});
  if (line.empty()) {
    if (has_data_) events.push_back(std::exchange(data_, {}));
    has_data_ = false;
    return;
  }
  const std::size_t colon = line.find(':');
  const std::string_view name = std::string_view(line).substr(0, colon);
  if (name != "data") return;
  std::string_view value;
  if (colon != std::string::npos) value = std::string_view(line).substr(colon + 1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (has_data_) data_.push_back('\n');
  data_.append(value);
  has_data_ = true;
}

}  // namespace millrace::deploy::cli
