#include "tests/sim/cluster/trace_file.h"

#include <zlib.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <list>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>

#include "common/annotate.h"
#include "common/json.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "dataplane/kv/hit_policy.h"

namespace millrace::sim {
namespace {

constexpr std::int64_t kTraceBlock = 512;  // tokens of a hash id
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 24;
constexpr std::string_view kCsvHeader = "TIMESTAMP,ContextTokens,GeneratedTokens";

/// Which blocks were used before, and by which row last.
class PrefixCache {
 public:
  explicit PrefixCache(std::int64_t capacity) : capacity_(capacity) {}

  struct Hit {
    std::int64_t blocks = 0;
    std::int32_t row = -1;
  };

  /// The leading blocks that are there; then all of them are, used last by `row`.
  Hit use(const std::vector<std::int64_t>& blocks, std::int32_t row) {
    Hit hit;
    bool is_prefix = true;
    for (const std::int64_t block : blocks) {
      const auto found = places_.find(block);
      is_prefix = is_prefix && found != places_.end();
      if (is_prefix) hit = {hit.blocks + 1, found->second->second};
      if (found != places_.end()) {
        order_.splice(order_.end(), order_, found->second);
        found->second->second = row;
      } else {
        order_.emplace_back(block, row);
        places_[block] = std::prev(order_.end());
      }
    }
    while (capacity_ > 0 && static_cast<std::int64_t>(order_.size()) > capacity_) {
      places_.erase(order_.front().first);
      order_.pop_front();
    }
    return hit;
  }

 private:
  using Order =
      std::list<std::pair<std::int64_t, std::int32_t>>;  // block, row; used longest ago first
  std::int64_t capacity_;
  Order order_;
  std::unordered_map<std::int64_t, Order::iterator> places_;
};

/// The whole text of a file that may be compressed.
absl::StatusOr<std::string> read_compressed(const std::string& path) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  if (file == nullptr) return absl::NotFoundError(str_cat(path, ": cannot be read"));
  std::string text;
  std::string chunk(1 << 16, '\0');
  while (true) {
    const int got = gzread(file.get(), chunk.data(), static_cast<unsigned>(chunk.size()));
    if (got < 0) {
      int code = Z_OK;
      return absl::InvalidArgumentError(
          str_cat(path, ": cannot be decompressed: ", gzerror(file.get(), &code)));
    }
    if (got == 0) return text;
    text.append(chunk, 0, static_cast<std::size_t>(got));
    if (text.size() > (std::size_t{1} << 31)) {
      return absl::InvalidArgumentError(str_cat(path, ": has more than 2 GiB of text"));
    }
  }
}

struct RawRow {
  SimTime at = 0;
  std::int64_t input = 0;
  std::int64_t output = 0;
  std::vector<std::int64_t> blocks;
};

absl::StatusOr<RawRow> parse_json_row(std::string_view line) {
  ASSIGN_OR_RETURN(const Json json, parse_json(line));
  RawRow row;
  ASSIGN_OR_RETURN(const double timestamp_ms, json_number(json, "timestamp"));
  if (!(timestamp_ms >= 0 && timestamp_ms < 1e12)) {
    return absl::InvalidArgumentError("timestamp is out of range");
  }
  row.at = static_cast<SimTime>(timestamp_ms * 1e6);
  ASSIGN_OR_RETURN(row.input, json_int(json, "input_length"));
  ASSIGN_OR_RETURN(row.output, json_int(json, "output_length"));
  const auto ids = json.find("hash_ids");
  if (ids == json.end() || !ids->is_array()) {
    return absl::InvalidArgumentError("hash_ids must be a list");
  }
  row.blocks.reserve(ids->size());
  for (const Json& id : *ids) {
    if (!id.is_number_integer())
      return absl::InvalidArgumentError("hash_ids must be whole numbers");
    row.blocks.push_back(id.get<std::int64_t>());
  }
  return row;
}

/// "2023-11-16 18:15:46.6805900": the time of day, and days by the calendar.
absl::StatusOr<SimTime> parse_time(std::string_view text) {
  const std::string copy(text);
  int year = 0;
  unsigned month = 0;
  unsigned day = 0;
  int hour = 0;
  int minute = 0;
  double second = 0;
  if (std::sscanf(copy.c_str(), "%4d-%2u-%2u %2d:%2d:%lf", &year, &month, &day, &hour, &minute,
                  &second) != 6) {
    return absl::InvalidArgumentError(str_cat("TIMESTAMP is \"", text, "\""));
  }
  const std::chrono::year_month_day date{std::chrono::year(year), std::chrono::month(month),
                                         std::chrono::day(day)};
  if (!date.ok()) return absl::InvalidArgumentError(str_cat("TIMESTAMP is \"", text, "\""));
  const auto days = std::chrono::sys_days(date).time_since_epoch().count();
  const std::int64_t minutes = (std::int64_t{days} * 24 + hour) * 60 + minute;
  return minutes * 60 * kSecond + static_cast<SimTime>(second * 1e9);
}

absl::StatusOr<std::int64_t> parse_count(std::string_view text, std::string_view name) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return absl::InvalidArgumentError(str_cat(name, " is \"", text, "\", not a number"));
  }
  return value;
}

absl::StatusOr<RawRow> parse_csv_row(std::string_view line) {
  const std::size_t first = line.find(',');
  const std::size_t second = first == line.npos ? first : line.find(',', first + 1);
  if (second == line.npos) return absl::InvalidArgumentError("does not have three columns");
  RawRow row;
  ASSIGN_OR_RETURN(row.at, parse_time(line.substr(0, first)));
  ASSIGN_OR_RETURN(row.input,
                   parse_count(line.substr(first + 1, second - first - 1), "ContextTokens"));
  ASSIGN_OR_RETURN(row.output, parse_count(line.substr(second + 1), "GeneratedTokens"));
  return row;
}

absl::Status append(const RawRow& raw, PrefixCache& cache, std::vector<TraceRow>& rows) {
  if (raw.input < 0 || raw.input > kMaxTokens || raw.output < 0 || raw.output > kMaxTokens) {
    return absl::InvalidArgumentError(str_cat("has a length outside 0 to ", kMaxTokens));
  }
  if (!rows.empty() && raw.at < rows.back().at) {
    return absl::InvalidArgumentError("is earlier than the line before");
  }
  const auto hit = cache.use(raw.blocks, static_cast<std::int32_t>(rows.size()));
  TraceRow row{.at = raw.at,
               .input_tokens = static_cast<std::int32_t>(std::max<std::int64_t>(raw.input, 1)),
               .output_tokens = static_cast<std::int32_t>(std::max<std::int64_t>(raw.output, 1)),
               .parent = hit.row};
  row.cached_tokens = cached_tokens_of(hit.blocks * kTraceBlock, row.input_tokens);
  rows.push_back(row);
  return absl::OkStatus();
}

}  // namespace

std::int32_t cached_tokens_of(std::int64_t stored_tokens, std::int64_t input_tokens) {
  const auto stored = static_cast<int>(std::min(stored_tokens, input_tokens));
  return dataplane::kv::plan_hit(static_cast<int>(input_tokens), stored, false, false)
      .compute_start;
}

absl::StatusOr<std::vector<TraceRow>> read_trace_rows(const std::string& path, std::int64_t most,
                                                      std::int64_t cache_blocks) {
  ASSIGN_OR_RETURN(const std::string text, read_compressed(path));
  std::vector<TraceRow> rows;
  PrefixCache cache(cache_blocks);
  bool is_csv = false;
  std::string_view rest = text;
  for (int number = 1; !rest.empty() && (most == 0 || std::ssize(rows) < most); ++number) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (number == 1 && line == kCsvHeader) {
      is_csv = true;
      continue;
    }
    if (line.empty()) continue;
    const absl::StatusOr<RawRow> raw = is_csv ? parse_csv_row(line) : parse_json_row(line);
    absl::Status status = raw.status();
    if (raw.ok()) status = append(*raw, cache, rows);
    if (!status.ok()) return annotate(status, str_cat(path, " line ", number));
  }
  if (rows.empty()) return absl::InvalidArgumentError(str_cat(path, ": holds no request"));
  const SimTime start = rows.front().at;
  for (TraceRow& row : rows) row.at -= start;
  return rows;
}

}  // namespace millrace::sim
