// `millrace bench serve`.

#include <algorithm>
#include <cstdio>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "common/json.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "deploy/cli/cluster_record.h"
#include "deploy/cli/commands.h"
#include "deploy/cli/completion_client.h"
#include "deploy/cli/load_generator.h"
#include "deploy/cli/statistics.h"
#include "deploy/cli/text_table.h"

namespace millrace::deploy::cli {
namespace {

constexpr std::size_t kSyntheticRequests = 64;
constexpr std::size_t kWholeTrace = std::numeric_limits<std::size_t>::max();

struct Report {
  std::string source = {};
  int requests = 0;
  int clipped = 0;
  std::map<std::string, int> errors = {};  ///< by message
  double duration_s = 0;
  std::int64_t prompt_tokens = 0;
  std::int64_t output_tokens = 0;
  Summary first_token_s = {};
  Summary seconds_per_token = {};
  Summary end_to_end_s = {};

  int failed() const {
    int total = 0;
    for (const auto& [message, count] : errors) total += count;
    return total;
  }
};

Report make_report(std::string source, int clipped, const LoadResult& load) {
  Report report{.source = std::move(source),
                .requests = static_cast<int>(load.requests.size()),
                .clipped = clipped,
                .duration_s = load.duration_s};
  std::vector<double> first;
  std::vector<double> per_token;
  std::vector<double> end;
  for (const RequestResult& result : load.requests) {
    if (!result.error.empty()) {
      ++report.errors[result.error];
      continue;
    }
    report.prompt_tokens += result.prompt_tokens;
    report.output_tokens += result.output_tokens;
    first.push_back(result.first_token_s);
    end.push_back(result.end_s);
    if (result.seconds_per_token >= 0) per_token.push_back(result.seconds_per_token);
  }
  report.first_token_s = summarize(std::move(first));
  report.seconds_per_token = summarize(std::move(per_token));
  report.end_to_end_s = summarize(std::move(end));
  return report;
}

Json summary_json(const Summary& summary) {
  return Json{{"count", summary.count}, {"mean", summary.mean}, {"p50", summary.p50},
              {"p90", summary.p90},     {"p99", summary.p99},   {"max", summary.max}};
}

void print_json(const Report& report, const BenchOptions& options) {
  Json json;
  json["source"] = report.source;
  json["concurrency"] = options.concurrency;
  json["keeps_arrivals"] = options.keep_arrivals;
  json["requests"] = report.requests;
  json["failed"] = report.failed();
  json["clipped"] = report.clipped;
  json["errors"] = Json::object();
  for (const auto& [message, count] : report.errors) json["errors"][message] = count;
  json["duration_s"] = report.duration_s;
  json["prompt_tokens"] = report.prompt_tokens;
  json["output_tokens"] = report.output_tokens;
  json["time_to_first_token_s"] = summary_json(report.first_token_s);
  json["time_per_output_token_s"] = summary_json(report.seconds_per_token);
  json["end_to_end_s"] = summary_json(report.end_to_end_s);
  std::printf("%s\n", dump_json(json).c_str());
}

std::vector<std::string> summary_row(std::string name, const Summary& summary, double scale) {
  std::vector<std::string> row = {std::move(name)};
  for (double value : {summary.mean, summary.p50, summary.p90, summary.p99, summary.max}) {
    row.push_back(fixed(value * scale, 1));
  }
  return row;
}

void print_table(const Report& report, const BenchOptions& options, const Terminal& terminal) {
  const double seconds = std::max(report.duration_s, 1e-9);
  std::printf("%s: %d requests, %d at a time, %s s\n", report.source.c_str(), report.requests,
              options.concurrency, fixed(report.duration_s, 1).c_str());
  std::printf("prompt tokens %lld (%s/s), output tokens %lld (%s/s), requests %s/s\n",
              static_cast<long long>(report.prompt_tokens),
              fixed(static_cast<double>(report.prompt_tokens) / seconds, 1).c_str(),
              static_cast<long long>(report.output_tokens),
              fixed(static_cast<double>(report.output_tokens) / seconds, 1).c_str(),
              fixed((report.requests - report.failed()) / seconds, 2).c_str());
  if (report.clipped > 0) {
    std::printf("%d requests were shortened to the model's context\n", report.clipped);
  }
  std::printf("\n");
  TextTable table({"milliseconds", "mean", "p50", "p90", "p99", "max"});
  table.add_row(summary_row("time to first token", report.first_token_s, 1e3));
  table.add_row(summary_row("time per output token", report.seconds_per_token, 1e3));
  table.add_row(summary_row("end to end", report.end_to_end_s, 1e3));
  std::printf("%s\n", table.to_string().c_str());
  const std::string errors = str_cat(report.failed(), " errors");
  std::printf("%s\n",
              (report.errors.empty() ? terminal.green(errors) : terminal.red(errors)).c_str());
  for (const auto& [message, count] : report.errors)
    std::printf("  %d x %s\n", count, message.c_str());
}

absl::StatusOr<std::vector<RequestShape>> make_shapes(const BenchOptions& options) {
  const auto limit = options.requests        ? static_cast<std::size_t>(*options.requests)
                     : options.trace.empty() ? kSyntheticRequests
                                             : kWholeTrace;
  if (options.trace.empty()) {
    const RequestShape shape{.input_tokens = options.input_tokens,
                             .output_tokens = options.output_tokens};
    return std::vector<RequestShape>(limit, shape);
  }
  ASSIGN_OR_RETURN(std::vector<RequestShape> shapes,
                   common::trace::read_trace(options.trace, limit));
  for (RequestShape& shape : shapes) {
    // A trace counts a request that produced nothing; a server answers with a token at least.
    shape.input_tokens = std::max(shape.input_tokens, 1);
    shape.output_tokens = std::max(shape.output_tokens, 1);
  }
  return shapes;
}

absl::StatusOr<Report> run_bench(const BenchOptions& options, const Terminal& terminal) {
  LoadOptions load{.concurrency = options.concurrency,
                   .keep_arrivals = options.keep_arrivals,
                   .seed = options.seed,
                   .timeout = std::chrono::seconds(options.timeout_s)};
  ASSIGN_OR_RETURN(load.url, entrypoint_url(options.server.url, options.server.data_dir));
  std::string model_dir = options.model_dir;
  if (model_dir.empty()) {
    ASSIGN_OR_RETURN(const ClusterRecord record, read_record(options.server.data_dir));
    model_dir = record.model_dir;
  }
  ASSIGN_OR_RETURN(const PromptText text, PromptText::open(model_dir));
  ASSIGN_OR_RETURN(std::vector<RequestShape> shapes, make_shapes(options));
  ASSIGN_OR_RETURN(const ServedModel model, CompletionClient(load.url).model());
  load.model = model.id;
  int clipped = 0;
  if (model.max_model_len) clipped = clip_to_context(shapes, *model.max_model_len);

  ProgressLine line(terminal);
  const int total = static_cast<int>(shapes.size());
  const LoadResult result = run_load(load, shapes, text, [&](int finished, int failed, int tokens) {
    line.show(str_cat(progress_bar(static_cast<double>(finished) / total, 30), " ", finished, "/",
                      total, " requests, ", tokens, " tokens, ", failed, " errors"));
  });
  line.clear();
  return make_report(options.trace.empty() ? "synthetic load" : options.trace, clipped, result);
}

}  // namespace

int run_bench_serve(const BenchOptions& options, const Terminal& terminal) {
  const absl::StatusOr<Report> report = run_bench(options, terminal);
  if (!report.ok()) {
    print_error(message_of(report.status()));
    return 1;
  }
  if (options.is_json) {
    print_json(*report, options);
  } else {
    print_table(*report, options, terminal);
  }
  return report->errors.empty() ? 0 : 1;
}

}  // namespace millrace::deploy::cli
