#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "dataplane/cost/cost_model.h"

namespace millrace::dataplane::cost {

/// What a cost file is good for: costs belong to a checkpoint, an engine and a kind of machine.
struct CostSubject {
  std::string model_id;
  std::string artifact_digest;  ///< 64 hex digits; empty for a model that nobody measured
  std::string backend;          ///< "cpu", "cuda"
  std::string machine;          ///< for people: processor and threads, or GPU

  friend bool operator==(const CostSubject&, const CostSubject&) = default;
};

/// The costs of an engine, as `millrace bench fit` writes them and workers and the simulator read
/// them.
struct CostFile {
  CostSubject subject;
  std::string source;  ///< one line for people: measured how and when, or derived from what
  CostModel prefill;
  DecodeCostModel decode;
  double prefill_error = 0;  ///< mean relative error on steps held out from the fit; 0 if derived
  double decode_error = 0;

  friend bool operator==(const CostFile&, const CostFile&) = default;
};

/// Reads the JSON text of a cost file. kInvalidArgument names the field and what it must be; `name`
/// is the file's, for the message.
absl::StatusOr<CostFile> parse_cost_file(std::string_view text, std::string_view name);

std::string to_json_text(const CostFile& file);

/// kFailedPrecondition, naming both values, when a file is of another checkpoint or backend than
/// the engine that wants to use it.
absl::Status check_subject(const CostFile& file, const CostSubject& engine, std::string_view name);

}  // namespace millrace::dataplane::cost
