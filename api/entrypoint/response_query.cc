#include "api/entrypoint/response_query.h"

#include <algorithm>
#include <limits>
#include <string>

#include "absl/strings/numbers.h"
#include "api/recipe/request_error.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::entrypoint {
namespace {

constexpr std::int64_t kMaxPage = 100;

/// A parameter as it was sent; nullopt when absent. No value that we know needs percent signs.
std::optional<std::string_view> parameter(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    const std::size_t equals = pair.find('=');
    if (pair.substr(0, equals) != name) continue;
    return equals == std::string_view::npos ? std::string_view() : pair.substr(equals + 1);
  }
  return std::nullopt;
}

absl::StatusOr<std::int64_t> number(std::string_view query, std::string_view name,
                                    std::int64_t otherwise, std::int64_t low, std::int64_t high) {
  const auto text = parameter(query, name);
  if (!text) return otherwise;
  std::int64_t value = 0;
  if (absl::SimpleAtoi(to_absl(*text), &value) && value >= low && value <= high) return value;
  return recipe::field_error(name,
                             str_cat("`", name, "` must be an integer from ", low, " to ", high));
}

}  // namespace

absl::StatusOr<ResponseQuery> parse_response_query(std::string_view query) {
  ResponseQuery parsed;
  const auto stream = parameter(query, "stream").value_or("false");
  if (stream != "true" && stream != "false") {
    return recipe::field_error("stream", "`stream` must be true or false");
  }
  parsed.is_streamed = stream == "true";
  ASSIGN_OR_RETURN(parsed.starting_after, number(query, "starting_after", -1, 0,
                                                 std::numeric_limits<std::int32_t>::max()));
  return parsed;
}

absl::StatusOr<recipe::ItemsPage> parse_items_query(std::string_view query) {
  recipe::ItemsPage page;
  ASSIGN_OR_RETURN(const std::int64_t limit, number(query, "limit", 20, 1, kMaxPage));
  page.limit = static_cast<std::size_t>(limit);
  const auto order = parameter(query, "order").value_or("desc");
  if (order != "asc" && order != "desc") {
    return recipe::field_error("order", "`order` must be asc or desc");
  }
  page.is_ascending = order == "asc";
  page.after = std::string(parameter(query, "after").value_or(""));
  return page;
}

}  // namespace millrace::api::entrypoint
