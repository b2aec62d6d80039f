#pragma once

#include <utility>

#include "absl/status/statusor.h"

namespace pybind11 {
class module_;
}  // namespace pybind11

namespace millrace::api::python {

/// Adds the exception RecipeError to the module.
void add_error(pybind11::module_& module);

/// Raises RecipeError, with the message, the field at fault and the codes of a status that is not
/// OK. Python knows failures as exceptions, so this folder alone throws.
[[noreturn]] void raise(const absl::Status& status);

inline void check(const absl::Status& status) {
  if (!status.ok()) raise(status);
}

template <typename Value>
Value take(absl::StatusOr<Value> value) {
  if (!value.ok()) raise(value.status());
  return *std::move(value);
}

}  // namespace millrace::api::python
