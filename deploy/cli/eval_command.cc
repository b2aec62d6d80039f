// `millrace eval`.

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "common/json.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "deploy/cli/cluster_record.h"
#include "deploy/cli/commands.h"
#include "deploy/cli/completion_client.h"
#include "deploy/cli/eval_tasks.h"
#include "deploy/cli/statistics.h"
#include "deploy/cli/text_table.h"

namespace millrace::deploy::cli {
namespace {

struct Score {
  int right = 0;
  int total = 0;
};

struct EvalReport {
  std::string model = {};
  std::string tasks = {};
  std::map<std::string, Score> scores = {};  ///< by kind of task
  Score all = {};
  std::vector<std::string> errors = {};  ///< requests that got no answer; they count as wrong
};

/// What came of one task.
struct Outcome {
  bool is_right = false;
  std::string error = {};
};

Outcome run_task(CompletionClient& client, const std::string& model, const EvalTask& task) {
  TextRequest request;
  request.model = model;
  request.prompt_ids = task.prompt_ids;
  request.max_tokens = task.max_tokens;
  request.temperature = 0;
  request.echo_ids = true;
  const absl::StatusOr<Completion> answer =
      client.complete(request, [](const Delta&) { return true; });
  if (!answer.ok()) return {.error = std::string(message_of(answer.status()))};
  return {.is_right = is_exact_match(task, answer->ids)};
}

std::vector<Outcome> run_tasks(const std::string& url, const std::string& model,
                               const std::vector<EvalTask>& tasks, int concurrency,
                               ProgressLine& line) {
  std::vector<Outcome> outcomes(tasks.size());
  std::atomic<std::size_t> next = 0;
  std::atomic<std::size_t> finished = 0;
  const auto work = [&] {
    CompletionClient client(url);
    for (std::size_t index = next++; index < tasks.size(); index = next++) {
      outcomes[index] = run_task(client, model, tasks[index]);
      ++finished;
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(concurrency));
  for (int i = 0; i < concurrency; ++i) threads.emplace_back(work);
  while (finished < tasks.size()) {
    const auto share = static_cast<double>(finished) / static_cast<double>(tasks.size());
    line.show(str_cat(progress_bar(share, 30), " ", finished.load(), "/", tasks.size(), " tasks"));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  for (std::thread& thread : threads) thread.join();
  line.clear();
  return outcomes;
}

absl::StatusOr<EvalReport> evaluate(const EvalOptions& options, const Terminal& terminal) {
  EvalReport report;
  ASSIGN_OR_RETURN(const std::string url,
                   entrypoint_url(options.server.url, options.server.data_dir));
  report.tasks = options.tasks;
  if (report.tasks.empty()) {
    std::string model_dir = options.model_dir;
    if (model_dir.empty()) {
      ASSIGN_OR_RETURN(const ClusterRecord record, read_record(options.server.data_dir));
      model_dir = record.model_dir;
    }
    report.tasks = str_cat(model_dir, "/eval/tasks.jsonl");
  }
  ASSIGN_OR_RETURN(std::vector<EvalTask> tasks, read_eval_tasks(report.tasks));
  if (options.limit > 0) {
    tasks.resize(std::min(tasks.size(), static_cast<std::size_t>(options.limit)));
  }
  ASSIGN_OR_RETURN(const ServedModel model, CompletionClient(url).model());
  report.model = model.id;

  ProgressLine line(terminal);
  const std::vector<Outcome> outcomes = run_tasks(url, model.id, tasks, options.concurrency, line);
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    for (Score* score : {&report.scores[tasks[i].task], &report.all}) {
      ++score->total;
      score->right += outcomes[i].is_right ? 1 : 0;
    }
    if (!outcomes[i].error.empty()) report.errors.push_back(outcomes[i].error);
  }
  return report;
}

Json score_json(const Score& score) {
  const Interval interval = wilson_interval(score.right, score.total);
  return Json{
      {"right", score.right},
      {"total", score.total},
      {"exact_match", score.total == 0 ? 0.0 : static_cast<double>(score.right) / score.total},
      {"interval_95", {interval.low, interval.high}}};
}

void print_json(const EvalReport& report) {
  Json json;
  json["model"] = report.model;
  json["tasks_file"] = report.tasks;
  json["tasks"] = Json::object();
  for (const auto& [name, score] : report.scores) json["tasks"][name] = score_json(score);
  json["all"] = score_json(report.all);
  json["errors"] = report.errors;
  std::printf("%s\n", dump_json(json).c_str());
}

std::vector<std::string> score_row(std::string name, const Score& score) {
  const Interval interval = wilson_interval(score.right, score.total);
  const double share = score.total == 0 ? 0.0 : static_cast<double>(score.right) / score.total;
  return {std::move(name), str_cat(score.right), str_cat(score.total),
          str_cat(fixed(100 * share, 1), " %"),
          str_cat(fixed(100 * interval.low, 1), " - ", fixed(100 * interval.high, 1), " %")};
}

void print_table(const EvalReport& report, const Terminal& terminal) {
  TextTable table({"task", "right", "of", "exact match", "95 % interval"});
  for (const auto& [name, score] : report.scores) table.add_row(score_row(name, score));
  table.add_row(score_row("all", report.all));
  std::printf("%s on %s\n\n%s", report.model.c_str(), report.tasks.c_str(),
              table.to_string().c_str());
  if (!report.errors.empty()) {
    const std::string text =
        str_cat(report.errors.size(), " tasks got no answer; the first: ", report.errors.front());
    std::printf("\n%s\n", terminal.red(text).c_str());
  }
}

}  // namespace

int run_eval(const EvalOptions& options, const Terminal& terminal) {
  const absl::StatusOr<EvalReport> report = evaluate(options, terminal);
  if (!report.ok()) {
    print_error(message_of(report.status()));
    return 1;
  }
  if (options.is_json) {
    print_json(*report);
  } else {
    print_table(*report, terminal);
  }
  return report->errors.empty() ? 0 : 1;
}

}  // namespace millrace::deploy::cli
