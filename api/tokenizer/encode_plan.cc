#include "api/tokenizer/encode_plan.h"

#include "api/tokenizer/piece_scanner.h"

namespace millrace::api::tokenizer {

EncodePlan plan_encoding(std::span<const PromptPart> parts, bool can_cut, std::size_t task_bytes) {
  EncodePlan plan;
  std::size_t bytes = task_bytes;  // of the last task; full, so that the first part begins one
  const auto add = [&](const PromptPart& part) {
    if (bytes >= task_bytes) {
      plan.begins.push_back(plan.parts.size());
      bytes = 0;
    }
    plan.parts.push_back(part);
    bytes += part.text.size();
  };
  for (const PromptPart& part : parts) {
    std::string_view rest = part.text;
    while (can_cut && part.token < 0 && rest.size() > task_bytes) {
      const std::size_t cut = PieceScanner::find_cut(rest, task_bytes);
      if (cut == rest.size()) break;
      add({rest.substr(0, cut)});
      rest.remove_prefix(cut);
    }
    add({rest, part.token});
  }
  return plan;
}

}  // namespace millrace::api::tokenizer
