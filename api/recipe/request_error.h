#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace millrace::api::recipe {

/// What a client is told about a request that cannot be served. It travels as an absl::Status whose
/// payloads carry `param` and `code`, so that the way there is ordinary; each protocol writes it in
/// its own form.
struct ErrorDetails {
  absl::StatusCode status_code = absl::StatusCode::kInternal;
  std::string type;     ///< OpenAI's: invalid_request_error, rate_limit_error, internal_error, ...
  std::string message;  ///< a sentence
  std::string param;    ///< the field at fault; empty = null
  std::string code;     ///< machine-readable; empty = null
};

/// A kInvalidArgument that names the field at fault. `code` may be empty.
absl::Status field_error(std::string_view param, std::string_view message,
                         std::string_view code = "invalid_value");

/// A kInvalidArgument for a field that this server knows of and does not serve.
absl::Status unsupported_field(std::string_view param);

/// A kNotFound for a model that this deployment does not serve.
absl::Status unknown_model_error(std::string_view model, std::string_view served);

/// A kNotFound for what a field refers to.
absl::Status not_found_error(std::string_view param, std::string_view message,
                             std::string_view code);

/// A kUnauthenticated: the request does not say who sends it, or not truly. `code` may be empty.
absl::Status authentication_error(std::string_view message, std::string_view code);

ErrorDetails error_details(const absl::Status& status);

/// OpenAI's form: {"error":{"message","type","param","code"}}
std::string error_body(const ErrorDetails& details);

}  // namespace millrace::api::recipe
