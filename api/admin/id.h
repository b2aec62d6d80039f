#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "common/str_cat.h"

namespace millrace::api::admin {

/// Node, host, worker and instance ids become parts of paths, URLs and shared-memory names, so they
/// are made of letters, digits, '.', '_' and '-', start with a letter or digit, and have 1 to 64
/// characters.
inline bool is_plain_id(std::string_view id) {
  if (id.empty() || id.size() > 64) return false;
  const auto is_alphanumeric = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  };
  if (!is_alphanumeric(id.front())) return false;
  for (char c : id) {
    if (!is_alphanumeric(c) && c != '.' && c != '_' && c != '-') return false;
  }
  return true;
}

/// What to say about an id that is not plain.
inline absl::Status plain_id_error(std::string_view id) {
  return absl::InvalidArgumentError(
      str_cat("\"", id.substr(0, 80), "\" is no id: 1 to 64 letters, digits, '.', '_' or '-', ",
              "the first one a letter or digit"));
}

}  // namespace millrace::api::admin
