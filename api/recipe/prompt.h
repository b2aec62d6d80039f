#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "api/recipe/conversation.h"
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

/// Renders a conversation in the V4.1 prompt format, up to and including the header of the answer
/// that is to be generated. Reasoning of assistant turns before the last user (or later system)
/// message is dropped, as the release encoder does.
/// Source: the V4.1 release's encoding, as far as it concerns conversations without tools.
std::vector<Segment> render_v41(const Conversation& conversation);

/// Token ids of a prompt. kInternal when the tokenizer lacks a control token of the format (the
/// entrypoint checks at start that it has them all).
absl::StatusOr<std::vector<TokenId>> encode_prompt(const std::vector<Segment>& segments,
                                                   const tokenizer::Tokenizer& tokenizer);

/// The control tokens that rendering and parsing need, by id.
struct ControlTokens {
  TokenId end_of_sequence = -1;
  TokenId think_begin = -1;
  TokenId think_end = -1;
};

/// Resolves them from a tokenizer; kFailedPrecondition lists every spelling of the V4.1 format that
/// it lacks. Ids differ between releases, so they are never constants.
absl::StatusOr<ControlTokens> resolve_control_tokens(const tokenizer::Tokenizer& tokenizer);

}  // namespace millrace::api::recipe
