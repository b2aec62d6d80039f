#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace millrace {

/// Debian's Abseil is built with its own string_view, which std::string_view does not convert to.
/// These three functions are the only places that know.

/// An Abseil view of the same characters.
inline absl::string_view to_absl(std::string_view text) { return {text.data(), text.size()}; }

/// The message of a status as a standard view; valid as long as the status.
inline std::string_view message_of(const absl::Status& status) {
  return {status.message().data(), status.message().size()};
}

namespace internal {
template <typename T>
decltype(auto) printable(const T& value) {
  if constexpr (std::is_same_v<T, std::string_view>) {
    return to_absl(value);
  } else {
    return (value);
  }
}
}  // namespace internal

/// Concatenates texts and numbers; the one way to build a message.
template <typename... Args>
std::string str_cat(const Args&... args) {
  return absl::StrCat(internal::printable(args)...);
}

}  // namespace millrace
