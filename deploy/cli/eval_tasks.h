#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/types.h"

namespace millrace::deploy::cli {

/// One held-out example: after these tokens, exactly those should come.
struct EvalTask {
  std::string task = {};  ///< the kind; results are counted per kind
  std::vector<TokenId> prompt_ids = {};
  std::vector<TokenId> expect_ids = {};
  int max_tokens = 0;
};

/// Reads a file of JSON lines {"task", "prompt_ids", "expect_ids", "max_tokens"}. kInvalidArgument
/// names the line.
absl::StatusOr<std::vector<EvalTask>> read_eval_tasks(const std::string& path);

/// Whether an answer is right: the expected tokens and nothing after them. max_tokens may cut both
/// at the same place.
bool is_exact_match(const EvalTask& task, const std::vector<TokenId>& answer_ids);

}  // namespace millrace::deploy::cli
