#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "deploy/cli/terminal.h"

namespace millrace::deploy::cli {

/// Hears how a start goes: any number of steps, then one end.
class UpReporter {
 public:
  virtual ~UpReporter() = default;
  virtual void step(std::string_view text) = 0;
  /// `record_json` is the object of --json.
  virtual void ready(std::string_view record_json) = 0;
  virtual void failed(std::string_view message) = 0;
};

/// Writes one line per call into a pipe whose other end is in relay_reports().
std::unique_ptr<UpReporter> make_pipe_reporter(int fd);

/// Reads such lines and hands them on until the end was reported (true) or the pipe broke before
/// that or `stop_fd` became readable (false).
bool relay_reports(int fd, int stop_fd, UpReporter& reporter);

}  // namespace millrace::deploy::cli
