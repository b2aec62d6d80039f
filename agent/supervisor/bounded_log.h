#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace millrace::agent::supervisor {

/// The log file that a process appends its output to, and the older half of it in `<path>.1`.
/// Together they stay within about twice `max_bytes`. One thread at a time.
class BoundedLog {
 public:
  BoundedLog(std::string path, std::uint64_t max_bytes)
      : path_(std::move(path)), max_bytes_(max_bytes) {}

  const std::string& path() const { return path_; }

  /// Remembers that a new run begins here, for last_line().
  void begin_run();

  /// When the file has outgrown its bound: copies it to `<path>.1` and empties it. The writer goes
  /// on at the start, because it appends. Lines that it writes between the copy and the emptying
  /// are lost; that is the price of needing no thread and no pipe that could stall the writer.
  absl::Status rotate_if_large();

  /// The last line of this run that is not blank, at most 500 bytes of it; empty when there is
  /// none.
  std::string last_line() const;

 private:
  std::uint64_t size() const;

  std::string path_;
  std::uint64_t max_bytes_;
  std::uint64_t run_begin_ = 0;
};

}  // namespace millrace::agent::supervisor
