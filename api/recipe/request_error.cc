#include "api/recipe/request_error.h"

#include <utility>

#include "absl/strings/cord.h"
#include "common/json.h"
#include "common/str_cat.h"

namespace millrace::api::recipe {
namespace {

constexpr const char* kParamUrl = "millrace/param";
constexpr const char* kCodeUrl = "millrace/code";

absl::Status with_details(absl::Status status, std::string_view param, std::string_view code) {
  if (!param.empty()) status.SetPayload(kParamUrl, absl::Cord(to_absl(param)));
  if (!code.empty()) status.SetPayload(kCodeUrl, absl::Cord(to_absl(code)));
  return status;
}

std::string payload(const absl::Status& status, const char* url) {
  const auto cord = status.GetPayload(url);
  return cord ? std::string(*cord) : std::string();
}

std::string type_of(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnimplemented:
      return "invalid_request_error";
    case absl::StatusCode::kResourceExhausted:
      return "rate_limit_error";
    case absl::StatusCode::kUnavailable:
      return "service_unavailable_error";
    case absl::StatusCode::kDeadlineExceeded:
      return "timeout_error";
    default:
      return "internal_error";
  }
}

}  // namespace

absl::Status field_error(std::string_view param, std::string_view message, std::string_view code) {
  return with_details(absl::InvalidArgumentError(to_absl(message)), param, code);
}

absl::Status unsupported_field(std::string_view param) {
  return field_error(param, str_cat("`", param, "` is not supported by this server"),
                     "unsupported_parameter");
}

absl::Status unknown_model_error(std::string_view model, std::string_view served) {
  return with_details(
      absl::NotFoundError(
          str_cat("The model `", model, "` does not exist; this server has `", served, "`.")),
      "model", "model_not_found");
}

absl::Status not_found_error(std::string_view param, std::string_view message,
                             std::string_view code) {
  return with_details(absl::NotFoundError(to_absl(message)), param, code);
}

absl::Status authentication_error(std::string_view message, std::string_view code) {
  return with_details(absl::UnauthenticatedError(to_absl(message)), "", code);
}

ErrorDetails error_details(const absl::Status& status) {
  return {.status_code = status.code(),
          .type = type_of(status.code()),
          .message = std::string(message_of(status)),
          .param = payload(status, kParamUrl),
          .code = payload(status, kCodeUrl)};
}

std::string error_body(const ErrorDetails& details) {
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  Json error = Json::object();
  error["message"] = details.message;
  error["type"] = details.type;
  error["param"] = or_null(details.param);
  error["code"] = or_null(details.code);
  Json body = Json::object();
  body["error"] = std::move(error);
  return dump_json(body);
}

}  // namespace millrace::api::recipe
