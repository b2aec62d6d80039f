#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <string_view>

namespace millrace::api::recipe {

/// The names under which clients may ask for the served model. A view, for the length of a call.
struct ModelNames {
  // Implicit, all three: a model with one name is its name.
  // NOLINTNEXTLINE(google-explicit-constructor)
  ModelNames(std::string_view served, std::span<const std::string> further = {})
      : id(served), aliases(further) {}
  // NOLINTNEXTLINE(google-explicit-constructor)
  ModelNames(const std::string& served) : id(served) {}
  // NOLINTNEXTLINE(google-explicit-constructor)
  ModelNames(const char* served) : id(served) {}

  bool has(std::string_view name) const {
    return name == id || std::find(aliases.begin(), aliases.end(), name) != aliases.end();
  }

  std::string_view id;
  std::span<const std::string> aliases;
};

}  // namespace millrace::api::recipe
