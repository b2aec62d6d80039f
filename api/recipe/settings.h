#pragma once

#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "api/recipe/conversation.h"
#include "api/recipe/deployment.h"
#include "api/recipe/output_parser.h"
#include "api/recipe/render_options.h"
#include "api/recipe/thinking_sampling.h"
#include "api/tokenizer/tokenizer.h"

namespace millrace::api::recipe {

/// Everything about rendering and reading that a deployment chooses, whatever a request says.
struct Settings {
  RenderOptions render;
  ParseOptions reading;  ///< see Deployment::reading
  Thinking default_thinking = Thinking::kOn;
  ThinkingSampling thinking_sampling = ThinkingSampling::kAsRequested;
  UsageForm usage_form = UsageForm::kSeparateChunk;
};

/// A setting by its name and the names of its values, for flags, configuration and bindings.
struct Setting {
  enum class Part { kPrompt, kAnswer };
  Part part;              ///< what it is about
  std::string_view name;  ///< words with underscores
  std::string_view help;
  std::span<const std::string_view> values;
  std::size_t (*get)(const Settings& settings);              ///< index of the value
  void (*set)(Settings& settings, std::size_t value_index);  ///< within `values`

  /// "--old-reasoning" for old_reasoning.
  std::string flag() const;
  std::string_view value_of(const Settings& settings) const { return values[get(settings)]; }
};

/// All of them; `encoding`, the generation of prompts, is the first.
std::span<const Setting> all_settings();

/// kInvalidArgument lists what is allowed when there is no such setting or value.
absl::Status change_setting(std::string_view name, std::string_view value, Settings& settings);

/// A deployment of a model that is known by its tokenizer alone. The tokenizer must outlive it.
/// kFailedPrecondition when the tokenizer lacks control tokens of the encoding.
absl::StatusOr<Deployment> make_deployment(const tokenizer::Tokenizer& tokenizer,
                                           const Settings& settings, std::string model_id);

}  // namespace millrace::api::recipe
