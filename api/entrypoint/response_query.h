#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "api/recipe/responses_items.h"

namespace millrace::api::entrypoint {

/// The query of GET /v1/responses/{id}. Other parameters are ignored.
struct ResponseQuery {
  bool is_streamed = false;
  std::int64_t starting_after = -1;  ///< number of the last event that the client has
};

/// Errors: kInvalidArgument, with the parameter's name.
absl::StatusOr<ResponseQuery> parse_response_query(std::string_view query);

/// The query of GET /v1/responses/{id}/input_items.
absl::StatusOr<recipe::ItemsPage> parse_items_query(std::string_view query);

}  // namespace millrace::api::entrypoint
