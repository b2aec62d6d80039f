#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "api/tokenizer/prompt_part.h"

namespace millrace::api::tokenizer {

/// A prompt as tasks that can be encoded apart: the ids of the tasks, one after another, are the
/// ids of the prompt.
struct EncodePlan {
  std::vector<PromptPart> parts;    ///< of the prompt; long texts are cut
  std::vector<std::size_t> begins;  ///< the first part of each task

  std::size_t task_count() const { return begins.size(); }
  std::span<const PromptPart> task(std::size_t i) const {
    const std::size_t end = i + 1 < begins.size() ? begins[i + 1] : parts.size();
    return std::span(parts).subspan(begins[i], end - begins[i]);
  }
};

/// Tasks of about `task_bytes` bytes of text. With can_cut texts are cut where PieceScanner proves
/// that it changes no piece; without it, and where there is no such place, texts stay whole.
EncodePlan plan_encoding(std::span<const PromptPart> parts, bool can_cut, std::size_t task_bytes);

}  // namespace millrace::api::tokenizer
