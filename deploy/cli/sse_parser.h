#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace millrace::deploy::cli {

/// Takes a text/event-stream apart, however it is cut into pieces. Only the data of events is kept;
/// names, ids and comments are skipped.
class SseParser {
 public:
  /// Longest event; a longer one is an error of the server.
  static constexpr std::size_t kMaxEventBytes = std::size_t{4} << 20;

  /// The data of every event that this piece completes, in order; the lines of one event are joined
  /// by '\n'. kResourceExhausted when an event grows over kMaxEventBytes.
  absl::StatusOr<std::vector<std::string>> feed(std::string_view piece);

 private:
  void end_line(std::vector<std::string>& events);

  std::string line_;
  std::string data_;
  bool has_data_ = false;
  bool follows_cr_ = false;
};

}  // namespace millrace::deploy::cli
