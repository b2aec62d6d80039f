#include "common/log/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <utility>

#include "common/str_cat.h"

namespace millrace {
namespace {

struct LevelName {
  std::string_view name;
  LogLevel level;
  spdlog::level::level_enum spd;
};

constexpr LevelName kLevels[] = {
    {"debug", LogLevel::kDebug, spdlog::level::debug},
    {"info", LogLevel::kInfo, spdlog::level::info},
    {"warn", LogLevel::kWarn, spdlog::level::warn},
    {"error", LogLevel::kError, spdlog::level::err},
    {"off", LogLevel::kOff, spdlog::level::off},
};

const LevelName& entry(LogLevel level) { return kLevels[static_cast<std::size_t>(level)]; }

void append_quoted(std::string& line, std::string_view text) {
  line.push_back('"');
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      line.push_back('\\');
      line.push_back(c);
    } else if (c == '\n') {
      line += "\\n";
    } else if (byte < 0x20 || byte == 0x7f) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", byte);
      line += escape;
    } else {
      line.push_back(c);
    }
  }
  line.push_back('"');
}

bool is_plain(std::string_view text) {
  if (text.empty()) return false;
  for (const char c : text) {
    if (c <= ' ' || c > '~' || c == '"' || c == '=' || c == '\\') return false;
  }
  return true;
}

void append_value(std::string& line, const LogField::Value& value) {
  if (const auto* text = std::get_if<std::string_view>(&value)) {
    is_plain(*text) ? void(line += *text) : append_quoted(line, *text);
  } else if (const auto* flag = std::get_if<bool>(&value)) {
    line += *flag ? "true" : "false";
  } else if (const auto* number = std::get_if<double>(&value)) {
    char digits[32];
    std::snprintf(digits, sizeof digits, "%.9g", *number);
    line += digits;
  } else if (const auto* integer = std::get_if<std::int64_t>(&value)) {
    line += std::to_string(*integer);
  } else {
    line += std::to_string(std::get<std::uint64_t>(value));
  }
}

/// spdlog's own names are "warning" and "critical"; ours are the words of --log-level.
class LevelFlag final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& out) override {
    std::string_view name = "off";
    for (const LevelName& level : kLevels) {
      if (level.spd == message.level) name = level.name;
    }
    out.append(name.data(), name.data() + name.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<LevelFlag>();
  }
};

std::unique_ptr<spdlog::formatter> line_formatter(const std::string& line_end) {
  auto formatter =
      std::make_unique<spdlog::pattern_formatter>(spdlog::pattern_time_type::utc, line_end);
  formatter->add_flag<LevelFlag>('*').set_pattern("%Y-%m-%dT%H:%M:%S.%fZ %* %n event=%v");
  return formatter;
}

class FunctionSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit FunctionSink(std::function<void(std::string_view)> write) : sink_(std::move(write)) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    sink_(std::string_view(line.data(), line.size()));
  }
  void flush_() override {}

  std::function<void(std::string_view)> sink_;
};

}  // namespace

struct Logger::Impl {
  // spdlog's log() is not const though it is thread-safe.
  mutable spdlog::logger logger;
};

absl::StatusOr<LogLevel> parse_log_level(std::string_view text) {
  for (const LevelName& level : kLevels) {
    if (level.name == text) return level.level;
  }
  return absl::InvalidArgumentError(
      str_cat("unknown log level \"", text, "\": use debug, info, warn, error or off"));
}

Logger Logger::to_stderr(std::string_view component, LogLevel level) {
  auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  sink->set_formatter(line_formatter("\n"));
  auto impl = std::make_shared<Impl>(spdlog::logger(std::string(component), std::move(sink)));
  impl->logger.set_level(entry(level).spd);
  return Logger(std::move(impl));
}

Logger Logger::to_sink(std::string_view component, LogLevel level,
                       std::function<void(std::string_view line)> sink) {
  auto function_sink = std::make_shared<FunctionSink>(std::move(sink));
  function_sink->set_formatter(line_formatter(""));
  auto impl =
      std::make_shared<Impl>(spdlog::logger(std::string(component), std::move(function_sink)));
  impl->logger.set_level(entry(level).spd);
  return Logger(std::move(impl));
}

Logger::Logger(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Logger::Logger(const Logger&) = default;
Logger& Logger::operator=(const Logger&) = default;
Logger::Logger(Logger&&) noexcept = default;
Logger& Logger::operator=(Logger&&) noexcept = default;
Logger::~Logger() = default;

void Logger::debug(std::string_view event, Fields fields) const {
  write(LogLevel::kDebug, event, fields);
}
void Logger::info(std::string_view event, Fields fields) const {
  write(LogLevel::kInfo, event, fields);
}
void Logger::warn(std::string_view event, Fields fields) const {
  write(LogLevel::kWarn, event, fields);
}
void Logger::error(std::string_view event, Fields fields) const {
  write(LogLevel::kError, event, fields);
}

void Logger::write(LogLevel level, std::string_view event, Fields fields) const {
  const spdlog::level::level_enum spd = entry(level).spd;
  if (!impl_->logger.should_log(spd)) return;
  std::string line(event);
  for (const LogField& field : fields) {
    line.push_back(' ');
    line += field.key();
    line.push_back('=');
    append_value(line, field.value());
  }
  impl_->logger.log(spd, spdlog::string_view_t(line.data(), line.size()));
}

}  // namespace millrace
