#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "api/recipe/conversation.h"
#include "api/recipe/output.h"
#include "api/recipe/render_options.h"
#include "api/tokenizer/tokenizer.h"
#include "common/types.h"

namespace millrace::api::recipe {

/// A stretch of a prompt: one control token by its spelling, or text that is only ever encoded with
/// the base vocabulary. Two texts never stand side by side, because a cut changes ids.
struct Segment {
  bool is_control = false;
  std::string text;

  bool operator==(const Segment&) const = default;
};

/// A prompt, and where the model's output begins.
struct RenderedPrompt {
  std::vector<Segment> segments;
  Stage stage = Stage::kAnswer;
  std::vector<std::string> images;  ///< references, in the order of their places in the prompt
};

/// Renders a conversation up to and including the header of the answer that is to be generated. A
/// forced tool choice in thinking mode is the adapters' business to prevent.
/// Errors: kInvalidArgument when the format has no such reasoning effort.
/// Source: the encoding that the V4 and V4.1 releases publish with their weights, and the prompts
/// recorded from deepseek-recipe.
absl::StatusOr<RenderedPrompt> render(const Conversation& conversation,
                                      const RenderOptions& options = {});

/// Token ids of a prompt; its texts are encoded with the base vocabulary alone, on the pool's
/// threads too when there is a pool. kInternal when the tokenizer lacks a control token that the
/// prompt needs (the entrypoint checks at start that it has those of ordinary conversations),
/// kInvalidArgument for text that is not valid UTF-8.
absl::StatusOr<std::vector<TokenId>> encode_prompt(const std::vector<Segment>& segments,
                                                   const tokenizer::Tokenizer& tokenizer,
                                                   tokenizer::EncodePool* pool = nullptr);

/// How many ids encode_prompt() would give, without keeping them.
absl::StatusOr<std::size_t> count_prompt(const std::vector<Segment>& segments,
                                         const tokenizer::Tokenizer& tokenizer);

/// The control tokens that parsing needs, by id.
struct ControlTokens {
  TokenId end_of_sequence = -1;
  TokenId think_begin = -1;
  TokenId think_end = -1;
  TokenId dsml = -1;  ///< the marker of tool calls
};

/// Resolves them from a tokenizer; kFailedPrecondition lists every spelling that ordinary
/// conversations of the format need and it lacks. Ids differ between releases, so they are never
/// constants.
absl::StatusOr<ControlTokens> resolve_control_tokens(const tokenizer::Tokenizer& tokenizer,
                                                     PromptFormat format = PromptFormat::kV41);

}  // namespace millrace::api::recipe
