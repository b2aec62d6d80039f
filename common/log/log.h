#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <variant>

#include "absl/status/statusor.h"

namespace millrace {

/// error: someone must act. warn: degraded, yet correct. info: a state change. debug: the rest.
enum class LogLevel { kDebug, kInfo, kWarn, kError, kOff };

/// Parses the text of --log-level: "debug", "info", "warn", "error", "off". Anything else is
/// kInvalidArgument and lists them.
absl::StatusOr<LogLevel> parse_log_level(std::string_view text);

/// One field of a log line. Holds views: build it in the call that logs it.
class LogField {
 public:
  using Value = std::variant<std::string_view, std::int64_t, std::uint64_t, double, bool>;

  LogField(std::string_view key, std::string_view value) : key_(key), value_(value) {}
  LogField(std::string_view key, const std::string& value)
      : key_(key), value_(std::string_view(value)) {}
  LogField(std::string_view key, const char* value) : key_(key), value_(std::string_view(value)) {}
  LogField(std::string_view key, bool value) : key_(key), value_(value) {}
  LogField(std::string_view key, std::floating_point auto value)
      : key_(key), value_(static_cast<double>(value)) {}
  LogField(std::string_view key, std::signed_integral auto value)
      : key_(key), value_(static_cast<std::int64_t>(value)) {}
  LogField(std::string_view key, std::unsigned_integral auto value)
      : key_(key), value_(static_cast<std::uint64_t>(value)) {}

  std::string_view key() const { return key_; }
  const Value& value() const { return value_; }

 private:
  std::string_view key_;
  Value value_;
};

/// The one logger. A line is an event name and fields, never a sentence:
///
///   log.info("request_routed", {{"request_id", id}, {"decode_rank", rank}});
///   2025-01-31T12:00:00.123456Z info worker event=request_routed request_id=r-1 decode_rank=3
///
/// A value that is not plain printable text without spaces is written in double quotes with JSON's
/// escapes, so that a line is a line whatever it holds. Prompts, outputs and keys are never logged.
/// Thread-safe; main builds one and passes it down; copies share the sink.
class Logger {
 public:
  /// Writes to standard error. `component` is the program's short name.
  static Logger to_stderr(std::string_view component, LogLevel level);
  /// Hands every finished line (without line break) to `sink`, one at a time.
  static Logger to_sink(std::string_view component, LogLevel level,
                        std::function<void(std::string_view line)> sink);

  Logger(const Logger&);
  Logger& operator=(const Logger&);
  /// Who was moved from may only be destroyed or assigned to.
  Logger(Logger&&) noexcept;
  Logger& operator=(Logger&&) noexcept;
  ~Logger();

  using Fields = std::initializer_list<LogField>;
  void debug(std::string_view event, Fields fields = {}) const;
  void info(std::string_view event, Fields fields = {}) const;
  void warn(std::string_view event, Fields fields = {}) const;
  void error(std::string_view event, Fields fields = {}) const;

 private:
  struct Impl;
  explicit Logger(std::shared_ptr<const Impl> impl);
  void write(LogLevel level, std::string_view event, Fields fields) const;

  std::shared_ptr<const Impl> impl_;
};

}  // namespace millrace
