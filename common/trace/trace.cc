#include "common/trace/trace.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "common/annotate.h"
#include "common/json.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::common::trace {
namespace {

using std::chrono::nanoseconds;

constexpr int kMaxLineBytes = 1 << 20;
constexpr double kMaxTimestampMs = 1e12;  // 31 years
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 24;
constexpr std::string_view kCsvHeader = "TIMESTAMP,ContextTokens,GeneratedTokens";

/// Lines of a file that may be compressed. gzip's own checksum is verified at the end of the file.
class LineReader {
 public:
  static absl::StatusOr<LineReader> open(const std::string& path) {
    errno = 0;
    gzFile file = gzopen(path.c_str(), "rb");
    if (file == nullptr) {
      return absl::NotFoundError(
          str_cat(path, ": ", errno == 0 ? "out of memory" : strerror(errno)));
    }
    return LineReader(file);
  }

  /// nullopt at the end of the file.
  absl::StatusOr<std::optional<std::string>> next() {
    std::string line(kMaxLineBytes, '\0');
    const bool is_line = gzgets(file_.get(), line.data(), kMaxLineBytes) != nullptr;
    line.resize(is_line ? std::strlen(line.c_str()) : 0);
    if (!line.ends_with('\n')) {  // the last line, the end, or what damage left of a line
      int code = Z_OK;
      const char* message = gzerror(file_.get(), &code);
      if (code != Z_OK && code != Z_STREAM_END) {
        return absl::InvalidArgumentError(str_cat("cannot be decompressed: ", message));
      }
    }
    if (!is_line) return std::nullopt;
    if (line.size() + 1 == kMaxLineBytes) {
      return absl::InvalidArgumentError(str_cat("has more than ", kMaxLineBytes, " bytes"));
    }
    while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
    return line;
  }

 private:
  struct Close {
    void operator()(gzFile file) const { gzclose(file); }
  };
  explicit LineReader(gzFile file) : file_(file) {}
  std::unique_ptr<gzFile_s, Close> file_;
};

absl::StatusOr<int> parse_tokens(std::string_view text, std::string_view name) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || value > kMaxTokens) {
    return absl::InvalidArgumentError(str_cat(name, " is \"", text, "\", not a number of tokens"));
  }
  return value;
}

/// "2023-11-16 18:15:46.6805900", as nanoseconds since 1970.
absl::StatusOr<nanoseconds> parse_timestamp(std::string_view text) {
  int year = 0;
  unsigned month = 0;
  unsigned day = 0;
  int hour = 0;
  int minute = 0;
  int second = 0;
  int consumed = 0;
  const std::string copy(text);
  const int fields = std::sscanf(copy.c_str(), "%4d-%2u-%2u %2d:%2d:%2d%n", &year, &month, &day,
                                 &hour, &minute, &second, &consumed);
  const std::chrono::year_month_day date{std::chrono::year(year), std::chrono::month(month),
                                         std::chrono::day(day)};
  std::string_view fraction =
      text.substr(std::min(text.size(), static_cast<std::size_t>(consumed)));
  bool is_valid = fields == 6 && date.ok() && hour < 24 && minute < 60 && second < 61;
  std::int64_t nanos = 0;
  if (is_valid && !fraction.empty()) {
    is_valid = fraction.front() == '.' && fraction.size() >= 2 && fraction.size() <= 10;
    fraction.remove_prefix(1);
    std::int64_t unit = 100'000'000;
    for (char c : fraction) {
      is_valid = is_valid && c >= '0' && c <= '9';
      nanos += (c - '0') * unit;
      unit /= 10;
    }
  }
  if (!is_valid) {
    return absl::InvalidArgumentError(
        str_cat("TIMESTAMP is \"", text, "\", not like \"2023-11-16 18:15:46.6805900\""));
  }
  const auto since_1970 = std::chrono::sys_days(date).time_since_epoch();
  return since_1970 + std::chrono::hours(hour) + std::chrono::minutes(minute) +
         std::chrono::seconds(second) + nanoseconds(nanos);
}

absl::StatusOr<RequestShape> parse_csv_row(std::string_view line) {
  const std::size_t first = line.find(',');
  const std::size_t second = first == std::string_view::npos ? first : line.find(',', first + 1);
  if (second == std::string_view::npos || line.find(',', second + 1) != std::string_view::npos) {
    return absl::InvalidArgumentError("does not have three columns");
  }
  RequestShape shape;
  ASSIGN_OR_RETURN(shape.arrival, parse_timestamp(line.substr(0, first)));
  ASSIGN_OR_RETURN(shape.input_tokens,
                   parse_tokens(line.substr(first + 1, second - first - 1), "ContextTokens"));
  ASSIGN_OR_RETURN(shape.output_tokens, parse_tokens(line.substr(second + 1), "GeneratedTokens"));
  return shape;
}

absl::StatusOr<std::vector<std::int64_t>> parse_blocks(const Json& row) {
  std::vector<std::int64_t> blocks;
  const auto ids = row.find("hash_ids");
  if (ids == row.end()) return blocks;
  if (!ids->is_array()) return absl::InvalidArgumentError("hash_ids must be a list");
  blocks.reserve(ids->size());
  for (const Json& id : *ids) {
    if (!id.is_number_integer()) {
      return absl::InvalidArgumentError("hash_ids must be whole numbers");
    }
    blocks.push_back(id.get<std::int64_t>());
  }
  return blocks;
}

absl::StatusOr<RequestShape> parse_json_row(std::string_view line) {
  ASSIGN_OR_RETURN(const Json row, parse_json(line));
  ASSIGN_OR_RETURN(const double timestamp_ms, json_number(row, "timestamp"));
  ASSIGN_OR_RETURN(const std::int64_t input, json_int(row, "input_length"));
  ASSIGN_OR_RETURN(const std::int64_t output, json_int(row, "output_length"));
  if (!(timestamp_ms >= 0 && timestamp_ms <= kMaxTimestampMs)) {
    return absl::InvalidArgumentError("timestamp is out of range");
  }
  if (input < 0 || input > kMaxTokens || output < 0 || output > kMaxTokens) {
    return absl::InvalidArgumentError("input_length or output_length is out of range");
  }
  RequestShape shape{.input_tokens = static_cast<int>(input),
                     .output_tokens = static_cast<int>(output),
                     .arrival = nanoseconds(static_cast<std::int64_t>(timestamp_ms * 1e6))};
  ASSIGN_OR_RETURN(shape.prefix_blocks, parse_blocks(row));
  return shape;
}

}  // namespace

absl::StatusOr<std::vector<RequestShape>> read_trace(const std::string& path, std::size_t most) {
  ASSIGN_OR_RETURN(LineReader reader, LineReader::open(path));
  std::vector<RequestShape> requests;
  bool is_csv = false;
  for (int number = 1; requests.size() < most; ++number) {
    const std::string place = str_cat(path, " line ", number);
    absl::StatusOr<std::optional<std::string>> line = reader.next();
    if (!line.ok()) return annotate(line.status(), place);
    if (!line->has_value()) break;
    if (number == 1 && **line == kCsvHeader) {
      is_csv = true;
      continue;
    }
    if (number == 1 && !(*line)->starts_with('{')) {
      return absl::InvalidArgumentError(
          str_cat(place, ": is neither \"", kCsvHeader, "\" nor a JSON object"));
    }
    if ((*line)->empty()) continue;
    absl::StatusOr<RequestShape> shape = is_csv ? parse_csv_row(**line) : parse_json_row(**line);
    if (!shape.ok()) return annotate(shape.status(), place);
    if (!requests.empty() && shape->arrival < requests.back().arrival) {
      return absl::InvalidArgumentError(str_cat(place, ": is earlier than the line before"));
    }
    requests.push_back(*std::move(shape));
  }
  if (requests.empty()) return absl::InvalidArgumentError(str_cat(path, ": holds no request"));
  const nanoseconds start = requests.front().arrival;
  for (RequestShape& request : requests) request.arrival -= start;
  return requests;
}

}  // namespace millrace::common::trace
