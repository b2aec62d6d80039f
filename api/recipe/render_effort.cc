#include "api/recipe/render_effort.h"

#include <string_view>

#include "common/str_cat.h"

namespace millrace::api::recipe {
namespace {

constexpr std::string_view kAbsoluteMaximum =
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to "
    "resolve the root cause, rigorously stress-testing your logic against all potential paths, "
    "edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, "
    "considered alternative, and rejected hypothesis to ensure absolutely no assumption is left "
    "unchecked.\n\n";
constexpr std::string_view kBeyondMaximum =
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: "
    "exhaustively decompose the problem into its most fundamental components, trace every causal "
    "chain to its root, and resolve the underlying cause rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple angles "
    "and are certain that no assumption remains unchecked and no error remains undiscovered.\n\n";

int number_of(const Effort& effort, V41Efforts table) {
  if (effort.exact) return *effort.exact;
  const bool is_release = table == V41Efforts::kRelease;
  switch (effort.name) {
    case Effort::Name::kLow:
      return is_release ? 50 : 25;
    case Effort::Name::kHigh:
      return is_release ? 75 : 50;
    case Effort::Name::kXhigh:
      return 75;
    case Effort::Name::kMax:
      break;
  }
  return 100;
}

}  // namespace

absl::StatusOr<std::string> effort_text(const Effort& effort, const RenderOptions& options) {
  if (options.format == PromptFormat::kV41) {
    return str_cat("Reasoning Effort: ", number_of(effort, options.v41_efforts),
                   " (range 1-100, the higher the value, the more thorough the reasoning)\n\n");
  }
  const bool is_first_release = options.v4_efforts == V4Efforts::kApril2026;
  switch (effort.name) {
    case Effort::Name::kLow:
      if (is_first_release) {
        return absl::InvalidArgumentError("this model has no reasoning effort \"low\"");
      }
      return std::string();
    case Effort::Name::kHigh:
    case Effort::Name::kXhigh:
      return is_first_release ? std::string() : std::string(kAbsoluteMaximum);
    case Effort::Name::kMax:
      break;
  }
  return std::string(is_first_release ? kAbsoluteMaximum : kBeyondMaximum);
}

}  // namespace millrace::api::recipe
