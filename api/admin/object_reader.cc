#include "api/admin/object_reader.h"

#include <cmath>
#include <utility>

#include "common/str_cat.h"

namespace millrace::api::admin {
namespace {

/// Above it JSON numbers are not exact in every reader. Counters also need room to grow.
constexpr std::uint64_t kMaxUnsigned = std::uint64_t{1} << 53;
constexpr std::string_view kExactUnsigned = "an integer between 0 and 2^53";

bool is_exact_unsigned(const Json& value) {
  return value.is_number_unsigned() && value.get<std::uint64_t>() <= kMaxUnsigned;
}

}  // namespace

ObjectReader::ObjectReader(const Json& object, std::string path)
    : object_(object), path_(std::move(path)) {
  if (object_.is_object()) return;
  std::string name = path_.empty() ? "the body" : path_.substr(0, path_.size() - 1);
  status_ = absl::InvalidArgumentError(str_cat(name, " must be a JSON object"));
}

const Json* ObjectReader::take(std::string_view key, Presence presence) {
  if (!status_.ok()) return nullptr;
  known_.emplace(key);
  auto it = object_.find(key);
  if (it != object_.end() && !(presence == Presence::kOptional && it->is_null())) return &*it;
  if (presence == Presence::kRequired) {
    status_ = absl::InvalidArgumentError(str_cat("\"", path_, key, "\" is missing"));
  }
  return nullptr;
}

bool ObjectReader::has(std::string_view key) {
  const Json* value = take(key, Presence::kOptional);
  return value != nullptr;
}

void ObjectReader::fail(std::string_view key, const absl::Status& status) {
  if (!status_.ok()) return;
  status_ = absl::InvalidArgumentError(str_cat("\"", path_, key, "\": ", message_of(status)));
}

void ObjectReader::wrong_type(std::string_view key, std::string_view expected) {
  if (!status_.ok()) return;
  status_ = absl::InvalidArgumentError(str_cat("\"", path_, key, "\" must be ", expected));
}

bool ObjectReader::check_list(std::string_view key, const Json& list, std::size_t max_items) {
  if (!list.is_array()) {
    wrong_type(key, "an array");
    return false;
  }
  if (list.size() <= max_items) return true;
  wrong_type(key, str_cat("an array of at most ", max_items, " items"));
  return false;
}

std::string ObjectReader::member_path(std::string_view key) const {
  return str_cat(path_, key, ".");
}

std::string ObjectReader::item_path(std::string_view key, std::size_t index) const {
  return str_cat(path_, key, "[", index, "].");
}

void ObjectReader::read(std::string_view key, std::string& out, Presence presence) {
  const Json* value = take(key, presence);
  if (value == nullptr) return;
  if (!value->is_string()) return wrong_type(key, "a string");
  out = value->get<std::string>();
}

void ObjectReader::read(std::string_view key, bool& out, Presence presence) {
  const Json* value = take(key, presence);
  if (value == nullptr) return;
  if (!value->is_boolean()) return wrong_type(key, "true or false");
  out = value->get<bool>();
}

void ObjectReader::read(std::string_view key, std::int64_t& out, Presence presence) {
  const Json* value = take(key, presence);
  if (value == nullptr) return;
  // The JSON library wraps an unsigned value above 2^63 around; refuse it before that.
  const bool fits = value->is_number_integer() &&
                    !(value->is_number_unsigned() &&
                      value->get<std::uint64_t>() >
                          static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()));
  if (!fits) return wrong_type(key, "an integer");
  out = value->get<std::int64_t>();
}

void ObjectReader::read(std::string_view key, std::uint64_t& out, Presence presence) {
  const Json* value = take(key, presence);
  if (value == nullptr) return;
  if (!is_exact_unsigned(*value)) return wrong_type(key, kExactUnsigned);
  out = value->get<std::uint64_t>();
}

void ObjectReader::required(std::string_view key, double& out) {
  const Json* value = take(key, Presence::kRequired);
  if (value == nullptr) return;
  if (!value->is_number() || !std::isfinite(value->get<double>())) {
    return wrong_type(key, "a finite number");
  }
  out = value->get<double>();
}

void ObjectReader::required_list(std::string_view key, std::size_t max_items,
                                 std::vector<std::uint64_t>& out) {
  const Json* list = take(key, Presence::kRequired);
  if (list == nullptr || !check_list(key, *list, max_items)) return;
  for (std::size_t index = 0; index < list->size(); ++index) {
    const Json& value = (*list)[index];
    if (!is_exact_unsigned(value)) {
      return wrong_type(str_cat(key, "[", index, "]"), kExactUnsigned);
    }
    out.push_back(value.get<std::uint64_t>());
  }
}

void ObjectReader::required_between(std::string_view key, std::int64_t low, std::int64_t high,
                                    std::int64_t& out) {
  std::int64_t value = low;
  required(key, value);
  if (value < low || value > high) {
    return wrong_type(key, str_cat("between ", low, " and ", high));
  }
  out = value;
}

void ObjectReader::optional_between(std::string_view key, std::int64_t low, std::int64_t high,
                                    std::int64_t& out) {
  std::int64_t value = out;
  optional(key, value);
  if (value < low || value > high) {
    return wrong_type(key, str_cat("between ", low, " and ", high));
  }
  out = value;
}

absl::Status ObjectReader::finish() {
  if (!status_.ok()) return status_;
  for (const auto& [key, value] : object_.items()) {
    if (!known_.contains(key)) {
      return absl::InvalidArgumentError(str_cat("\"", path_, key, "\" is not known here"));
    }
  }
  return absl::OkStatus();
}

}  // namespace millrace::api::admin
