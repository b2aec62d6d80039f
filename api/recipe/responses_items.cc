#include "api/recipe/responses_items.h"

#include <algorithm>
#include <utility>

#include "api/recipe/request_error.h"
#include "common/json.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::api::recipe {
namespace {

constexpr std::size_t kMaxItems = 16384;

std::string_view id_prefix(std::string_view type) {
  if (type == "message") return "msg";
  if (type == "reasoning") return "rs";
  if (type == "function_call") return "fc";
  if (type == "function_call_output") return "fco";
  if (type == "custom_tool_call") return "ctc";
  if (type == "custom_tool_call_output") return "ctco";
  return "item";
}

/// The only part of a message whose content is a string.
Json text_part(const Json& text, bool is_output) {
  Json part = Json::object();
  part["type"] = is_output ? "output_text" : "input_text";
  part["text"] = text;
  if (is_output) part["annotations"] = Json::array();
  return part;
}

Json listed_item(const Json& given, const std::string& generated_suffix) {
  const auto type = given.find("type");
  const bool has_type = type != given.end() && type->is_string();
  Json item = Json::object();
  item["type"] = has_type ? *type : Json("message");
  const auto id = given.find("id");
  const bool has_id =
      id != given.end() && id->is_string() && !id->get_ref<const std::string&>().empty();
  item["id"] = has_id ? *id
                      : Json(str_cat(id_prefix(item["type"].get_ref<const std::string&>()), "_",
                                     generated_suffix));
  for (const auto& [name, value] : given.items()) {
    if (!item.contains(name)) item[name] = value;
  }
  if (item["type"] != "message") return item;
  const auto content = item.find("content");
  if (content != item.end() && content->is_string()) {
    const auto role = given.find("role");
    *content = Json::array({text_part(*content, role != given.end() && *role == "assistant")});
  }
  if (!item.contains("status")) item["status"] = "completed";
  return item;
}

}  // namespace

absl::StatusOr<Json> read_input_items(const Fields& body, std::string_view request_id) {
  Json items = Json::array();
  const Json* input = body.find("input");
  if (input == nullptr) return items;
  if (input->is_string()) {
    Json message = Json::object();
    message["role"] = "user";
    message["content"] = *input;
    items.push_back(listed_item(message, str_cat(request_id, "_in0")));
    return items;
  }
  if (!input->is_array()) {
    return field_error("input", "`input` must be a string or a list of items", "invalid_type");
  }
  if (input->empty()) {
    return field_error("input", "`input` must have at least one item", "empty_array");
  }
  if (input->size() > kMaxItems) {
    return field_error("input", str_cat("`input` may have at most ", kMaxItems, " items"),
                       "array_above_max_length");
  }
  for (std::size_t i = 0; i < input->size(); ++i) {
    const Json& item = (*input)[i];
    if (!item.is_object()) {
      const std::string where = str_cat("input[", i, "]");
      return field_error(where, str_cat("`", where, "` must be an object"), "invalid_type");
    }
    items.push_back(listed_item(item, str_cat(request_id, "_in", i)));
  }
  return items;
}

absl::StatusOr<std::string> items_page(std::string_view items, const ItemsPage& page) {
  ASSIGN_OR_RETURN(Json list, parse_json(items));
  if (!page.is_ascending) std::reverse(list.begin(), list.end());
  auto begin = list.begin();
  if (!page.after.empty()) {
    begin = std::find_if(list.begin(), list.end(),
                         [&](const Json& item) { return item["id"] == page.after; });
    if (begin == list.end()) {
      return field_error("after", str_cat("`after` is the id of no item: ", page.after));
    }
    ++begin;
  }
  const auto left = static_cast<std::size_t>(list.end() - begin);
  const auto end = begin + static_cast<std::ptrdiff_t>(std::min(left, page.limit));
  Json data = Json::array();
  std::move(begin, end, std::back_inserter(data));
  Json body = Json::object();
  body["object"] = "list";
  body["first_id"] = data.empty() ? Json() : data.front()["id"];
  body["last_id"] = data.empty() ? Json() : data.back()["id"];
  body["has_more"] = left > page.limit;
  body["data"] = std::move(data);
  return dump_json(body);
}

}  // namespace millrace::api::recipe
