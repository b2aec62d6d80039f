#include "dataplane/cost/cost_file.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <utility>

#include "common/json.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::dataplane::cost {
namespace {

constexpr int kFormat = 2;  // 1 had no terms of the tail

/// Refuses members that nobody reads: a misspelt coefficient must not count as 0.
absl::Status check_members(const Json& object, std::string_view where,
                           std::span<const std::string_view> known) {
  if (!object.is_object()) {
    return absl::InvalidArgumentError(str_cat(where, " must be an object"));
  }
  for (const auto& [key, value] : object.items()) {
    bool is_known = false;
    for (const std::string_view name : known) is_known = is_known || name == key;
    if (!is_known) return absl::InvalidArgumentError(str_cat(where, ": unknown member ", key));
  }
  return absl::OkStatus();
}

absl::StatusOr<const Json*> member(const Json& object, std::string_view key) {
  const auto found = object.find(std::string(key));
  if (found == object.end()) return absl::InvalidArgumentError(str_cat(key, " is missing"));
  return &*found;
}

absl::StatusOr<CostModel> read_prefill(const Json& value) {
  std::array<std::string_view, kCoefficients.size()> names;
  std::transform(kCoefficients.begin(), kCoefficients.end(), names.begin(),
                 [](const Coefficient& c) { return c.name; });
  RETURN_IF_ERROR(check_members(value, "prefill", names));
  CostModel model;
  for (const Coefficient& c : kCoefficients) {
    ASSIGN_OR_RETURN(model.*c.value, json_number(value, c.name));
  }
  RETURN_IF_ERROR(check(model));
  return model;
}

absl::StatusOr<DecodeCostModel> read_decode(const Json& value) {
  constexpr std::array<std::string_view, 3> kNames = {"fixed", "per_request", "per_kv_token"};
  RETURN_IF_ERROR(check_members(value, "decode", kNames));
  DecodeCostModel model;
  ASSIGN_OR_RETURN(model.fixed, json_number(value, "fixed"));
  ASSIGN_OR_RETURN(model.per_request, json_number(value, "per_request"));
  ASSIGN_OR_RETURN(model.per_kv_token, json_number(value, "per_kv_token"));
  RETURN_IF_ERROR(check(model));
  return model;
}

absl::StatusOr<double> read_error(const Json& value, std::string_view key) {
  ASSIGN_OR_RETURN(const double error, json_number(value, key));
  if (!std::isfinite(error) || error < 0) {
    return absl::InvalidArgumentError(str_cat(key, " must be a finite number of at least 0"));
  }
  return error;
}

bool is_digest(std::string_view text) {
  return text.empty() ||
         (text.size() == 64 && text.find_first_not_of("0123456789abcdef") == text.npos);
}

absl::StatusOr<CostFile> read(std::string_view text) {
  ASSIGN_OR_RETURN(const Json json, parse_json(text));
  constexpr std::array<std::string_view, 10> kNames = {
      "format", "model_id", "artifact_digest", "backend",       "machine",
      "source", "prefill",  "decode",          "prefill_error", "decode_error"};
  RETURN_IF_ERROR(check_members(json, "the file", kNames));
  ASSIGN_OR_RETURN(const std::int64_t format, json_int(json, "format"));
  if (format != kFormat) {
    return absl::InvalidArgumentError(
        str_cat("format is ", format, "; this program reads format ", kFormat));
  }
  CostFile file;
  ASSIGN_OR_RETURN(file.subject.model_id, json_string(json, "model_id"));
  ASSIGN_OR_RETURN(file.subject.artifact_digest, json_string(json, "artifact_digest"));
  if (!is_digest(file.subject.artifact_digest)) {
    return absl::InvalidArgumentError("artifact_digest must be 64 hex digits, or empty");
  }
  ASSIGN_OR_RETURN(file.subject.backend, json_string(json, "backend"));
  ASSIGN_OR_RETURN(file.subject.machine, json_string(json, "machine"));
  ASSIGN_OR_RETURN(file.source, json_string(json, "source"));
  ASSIGN_OR_RETURN(const Json* prefill, member(json, "prefill"));
  ASSIGN_OR_RETURN(file.prefill, read_prefill(*prefill));
  ASSIGN_OR_RETURN(const Json* decode, member(json, "decode"));
  ASSIGN_OR_RETURN(file.decode, read_decode(*decode));
  ASSIGN_OR_RETURN(file.prefill_error, read_error(json, "prefill_error"));
  ASSIGN_OR_RETURN(file.decode_error, read_error(json, "decode_error"));
  return file;
}

}  // namespace

absl::StatusOr<CostFile> parse_cost_file(std::string_view text, std::string_view name) {
  absl::StatusOr<CostFile> file = read(text);
  if (file.ok()) return file;
  return absl::InvalidArgumentError(str_cat("cost file ", name, ": ", message_of(file.status())));
}

std::string to_json_text(const CostFile& file) {
  Json prefill;
  for (const Coefficient& c : kCoefficients) prefill[std::string(c.name)] = file.prefill.*c.value;
  const Json json = {
      {"format", kFormat},
      {"model_id", file.subject.model_id},
      {"artifact_digest", file.subject.artifact_digest},
      {"backend", file.subject.backend},
      {"machine", file.subject.machine},
      {"source", file.source},
      {"prefill", std::move(prefill)},
      {"decode",
       {{"fixed", file.decode.fixed},
        {"per_request", file.decode.per_request},
        {"per_kv_token", file.decode.per_kv_token}}},
      {"prefill_error", file.prefill_error},
      {"decode_error", file.decode_error},
  };
  return str_cat(dump_json_pretty(json), "\n");
}

absl::Status check_subject(const CostFile& file, const CostSubject& engine, std::string_view name) {
  const std::array<std::array<std::string_view, 3>, 3> pairs = {{
      {"model", file.subject.model_id, engine.model_id},
      {"checkpoint", file.subject.artifact_digest, engine.artifact_digest},
      {"backend", file.subject.backend, engine.backend},
  }};
  for (const auto& [what, of_file, of_engine] : pairs) {
    if (of_file != of_engine) {
      return absl::FailedPreconditionError(str_cat("cost file ", name, " is of ", what, " \"",
                                                   of_file, "\", this engine is of \"", of_engine,
                                                   "\""));
    }
  }
  return absl::OkStatus();
}

}  // namespace millrace::dataplane::cost
