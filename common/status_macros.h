#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"

/// The only two error macros of the code base.
///
/// RETURN_IF_ERROR(expr): returns expr's status from the enclosing function when it is not OK.
/// ASSIGN_OR_RETURN(lhs, expr): assigns the value of a StatusOr, or returns its status.

#define RETURN_IF_ERROR(expr)                                                 \
  do {                                                                        \
    if (::absl::Status status_macro_value = (expr); !status_macro_value.ok()) \
      return status_macro_value;                                              \
  } while (false)

#define MILLRACE_CONCAT_INNER(a, b) a##b
#define MILLRACE_CONCAT(a, b) MILLRACE_CONCAT_INNER(a, b)

#define ASSIGN_OR_RETURN(lhs, expr) \
  MILLRACE_ASSIGN_OR_RETURN(MILLRACE_CONCAT(status_or_value_, __LINE__), lhs, expr)

#define MILLRACE_ASSIGN_OR_RETURN(tmp, lhs, expr) \
  auto tmp = (expr);                              \
  if (!tmp.ok()) return std::move(tmp).status();  \
  lhs = std::move(tmp).value()
