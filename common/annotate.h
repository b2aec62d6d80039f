#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "common/str_cat.h"

namespace millrace {

/// Puts "context: " in front of a status message and keeps its code. OK stays OK.
/// Add context once per layer, not at every call.
inline absl::Status annotate(const absl::Status& status, std::string_view context) {
  if (status.ok()) return status;
  return absl::Status(status.code(), str_cat(context, ": ", message_of(status)));
}

}  // namespace millrace
