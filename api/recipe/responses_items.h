#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "api/recipe/fields.h"
#include "common/json_fwd.h"

namespace millrace::api::recipe {

/// Items of a Responses conversation as JSON: what a request brought, and what answers left.

/// The `input` of a body as a list of items, each with the members that clients expect when it is
/// listed: a type, an id (made from `request_id` where the client gave none), and content as parts.
/// Everything else stays as it came; what the items say is not checked here. Empty when there is no
/// input. Errors: kInvalidArgument, with the field's name.
absl::StatusOr<Json> read_input_items(const Fields& body, std::string_view request_id);

/// Which part of a list of items a client wants to see.
struct ItemsPage {
  std::size_t limit = 20;  ///< 1 to 100
  bool is_ascending = false;
  std::string after;  ///< id of the item behind which the page begins; empty = none
};

/// A page of a list of items (a JSON text, oldest first), in the API's form of lists.
/// Errors: kInvalidArgument when `after` is no id of the list.
absl::StatusOr<std::string> items_page(std::string_view items, const ItemsPage& page);

}  // namespace millrace::api::recipe
