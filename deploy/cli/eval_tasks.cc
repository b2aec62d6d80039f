#include "deploy/cli/eval_tasks.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include "common/annotate.h"
#include "common/json.h"
#include "common/mapped_file.h"
#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::deploy::cli {
namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{256} << 20;

absl::StatusOr<std::vector<TokenId>> read_ids(const Json& row, std::string_view key) {
  const auto found = row.find(std::string(key));
  if (found == row.end() || !found->is_array() || found->empty()) {
    return absl::InvalidArgumentError(str_cat(key, " is not a list of token ids"));
  }
  std::vector<TokenId> ids;
  ids.reserve(found->size());
  for (const Json& id : *found) {
    if (!id.is_number_integer() || id < 0 || id > std::numeric_limits<TokenId>::max()) {
      return absl::InvalidArgumentError(str_cat(key, " holds ", dump_json(id), ", no token id"));
    }
    ids.push_back(id.get<TokenId>());
  }
  return ids;
}

absl::StatusOr<EvalTask> parse_task(std::string_view line) {
  ASSIGN_OR_RETURN(const Json row, parse_json(line));
  EvalTask task;
  ASSIGN_OR_RETURN(task.task, json_string(row, "task"));
  ASSIGN_OR_RETURN(task.prompt_ids, read_ids(row, "prompt_ids"));
  ASSIGN_OR_RETURN(task.expect_ids, read_ids(row, "expect_ids"));
  ASSIGN_OR_RETURN(const std::int64_t max_tokens, json_int(row, "max_tokens"));
  if (max_tokens < static_cast<std::int64_t>(task.expect_ids.size()) || max_tokens > 1'000'000) {
    return absl::InvalidArgumentError(
        str_cat("max_tokens is ", max_tokens, ", too few for the expected answer or too many"));
  }
  task.max_tokens = static_cast<int>(max_tokens);
  return task;
}

}  // namespace

absl::StatusOr<std::vector<EvalTask>> read_eval_tasks(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, read_file(path, kMaxFileBytes));
  std::vector<EvalTask> tasks;
  int number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.empty()) continue;
    absl::StatusOr<EvalTask> task = parse_task(line);
    if (!task.ok()) return annotate(task.status(), str_cat(path, " line ", number));
    tasks.push_back(*std::move(task));
  }
  if (tasks.empty()) return absl::InvalidArgumentError(str_cat(path, ": holds no task"));
  return tasks;
}

bool is_exact_match(const EvalTask& task, const std::vector<TokenId>& answer_ids) {
  return answer_ids == task.expect_ids;
}

}  // namespace millrace::deploy::cli
