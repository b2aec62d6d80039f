// `millrace-simulate`: a cluster in virtual time, under one policy after another.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "common/str_cat.h"
#include "tests/sim/cluster/goodput.h"
#include "tests/sim/cluster/scenario_file.h"
#include "tests/sim/cluster/summary.h"
#include "tests/sim/experts/simulate_experts.h"

namespace {

namespace sim = millrace::sim;
using millrace::str_cat;

struct Options {
  std::string scenario;
  std::vector<std::string> policies;
  std::vector<std::string> settings;
  std::uint64_t seed = 1;
  double load = 1;
  std::string json;
  std::string html;
  std::string experts;
  bool is_goodput = false;
  bool is_markdown = false;
  bool is_quiet = false;
};

CLI::App* add_cluster(CLI::App& app, Options& options) {
  CLI::App* command =
      app.add_subcommand("cluster", "Requests through entrypoints, prefill, decode");
  command->add_option("--scenario", options.scenario, "TOML file")->required();
  command->add_option("--policy", options.policies,
                      "millrace, round_robin, least_requests, least_tokens, power_of_two, "
                      "moving_buckets, overlap_credit; repeat it to compare (default: millrace and "
                      "least_tokens). millrace:no_pull,... switches layers off: no_buckets, "
                      "no_pull, no_rank_choice, no_variable_chunk");
  command->add_option("--set", options.settings, "key=value in place of the file's; repeatable");
  command->add_option("--seed", options.seed, "Equal seeds give equal runs")->capture_default_str();
  command->add_option("--load", options.load, "Times the arrival rate of the scenario")
      ->check(CLI::Range(0.001, 1000.0))
      ->capture_default_str();
  command->add_option("--json", options.json, "Write the results to this file");
  command->add_option("--html", options.html, "Write a report with plots to this file");
  command->add_flag("--markdown", options.is_markdown, "Print the table as Markdown");
  command->add_flag("--goodput", options.is_goodput,
                    "Search the highest arrival rate at which limits.share of requests meet both "
                    "limits");
  command->add_flag("--quiet", options.is_quiet, "No progress on standard error");
  command->footer(str_cat("Values of a scenario:\n", sim::scenario_help(),
                          "\nExample:\n  millrace-simulate cluster --scenario "
                          "tests/sim/scenarios/conversation.toml --policy millrace --policy "
                          "least_tokens --html report.html\n"));
  return command;
}

CLI::App* add_experts(CLI::App& app, Options& options) {
  CLI::App* command =
      app.add_subcommand("experts", "How evenly experts load ranks while what is wanted drifts");
  command->add_option("--only", options.experts, "A scenario by its name (default: all)");
  command->add_option("--seed", options.seed, "Equal seeds give equal runs")->capture_default_str();
  command->footer("Takes minutes. Example:\n  millrace-simulate experts --seed 1");
  return command;
}

absl::Status write_file(const std::string& path, const std::string& text) {
  if (path.empty()) return absl::OkStatus();
  std::ofstream file(path, std::ios::binary);
  if (!(file << text) || !file.flush()) {
    return absl::UnavailableError(str_cat(path, ": cannot be written"));
  }
  return absl::OkStatus();
}

absl::Status compare(const Options& options, const sim::Scenario& scenario,
                     const std::vector<sim::PolicyChoice>& policies) {
  ASSIGN_OR_RETURN(const auto arrivals, sim::make_workload(scenario, options.seed));
  std::vector<sim::ReportedRun> runs;
  std::vector<sim::Summary> summaries;
  for (const sim::PolicyChoice& policy : policies) {
    const auto progress = [&](double at_s) {
      if (options.is_quiet) return;
      std::cerr << "\r" << policy.name() << ": " << static_cast<std::int64_t>(at_s)
                << " s of virtual time   " << std::flush;
    };
    sim::ClusterOutcome outcome =
        sim::simulate_cluster(scenario, policy, arrivals, options.seed, progress);
    sim::Summary summary = sim::summarize(scenario, outcome);
    if (!options.is_quiet) {
      std::cerr << "\r" << policy.name() << ": " << outcome.requests.size() << " requests, "
                << outcome.events << " events in " << outcome.wall_s << " s\n";
    }
    summaries.push_back(summary);
    if (!options.html.empty()) runs.push_back({std::move(summary), std::move(outcome)});
  }
  std::cout << (options.is_markdown ? sim::to_markdown(summaries)
                                    : sim::to_table(scenario, summaries));
  RETURN_IF_ERROR(write_file(options.json, sim::to_json(scenario, options.seed, summaries)));
  if (options.html.empty()) return absl::OkStatus();
  return write_file(options.html, sim::to_html(scenario, options.seed, runs));
}

absl::Status search(const Options& options, const sim::Scenario& scenario,
                    const std::vector<sim::PolicyChoice>& policies) {
  std::vector<sim::Goodput> found;
  for (const sim::PolicyChoice& policy : policies) {
    ASSIGN_OR_RETURN(
        sim::Goodput goodput,
        sim::find_goodput(scenario, policy, options.seed, [&](double factor, double share) {
          if (options.is_quiet) return;
          std::cerr << policy.name() << ": " << factor << " x load: " << 100 * share
                    << " % within limits\n";
        }));
    found.push_back(std::move(goodput));
  }
  std::cout << sim::to_table(scenario, found);
  return write_file(options.json, sim::to_json(scenario, options.seed, found));
}

absl::Status run_cluster(const Options& options) {
  ASSIGN_OR_RETURN(const sim::Scenario read,
                   sim::read_scenario(options.scenario, options.settings));
  const sim::Scenario scenario = sim::scale_load(read, options.load);
  std::vector<std::string> names = options.policies;
  if (names.empty()) names = {"millrace", "least_tokens"};
  std::vector<sim::PolicyChoice> policies;
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(const sim::PolicyChoice policy, sim::parse_policy_choice(name));
    policies.push_back(policy);
  }
  return options.is_goodput ? search(options, scenario, policies)
                            : compare(options, scenario, policies);
}

absl::Status run_experts(const Options& options) {
  bool is_known = false;
  std::string names;
  for (const sim::NamedExpertScenario& named : sim::expert_scenarios()) {
    names.append(names.empty() ? "" : ", ").append(named.name);
    if (!options.experts.empty() && options.experts != named.name) continue;
    is_known = true;
    ASSIGN_OR_RETURN(const sim::ExpertReport report,
                     sim::simulate_experts(named.scenario, options.seed));
    std::cout << sim::summary(named, report) << std::endl;
  }
  if (is_known) return absl::OkStatus();
  return absl::InvalidArgumentError(
      str_cat("no expert scenario is called \"", options.experts, "\"; there are ", names));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Simulates a Millrace cluster in virtual time.", "millrace-simulate");
  app.require_subcommand(1);
  Options options;
  add_cluster(app, options);
  const CLI::App* experts = add_experts(app, options);
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = experts->parsed() ? run_experts(options) : run_cluster(options);
  if (status.ok()) return 0;
  std::cerr << "millrace-simulate: " << millrace::message_of(status) << "\n";
  return 1;
}
