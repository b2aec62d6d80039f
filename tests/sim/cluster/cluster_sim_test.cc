#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>

#include "common/str_cat.h"
#include "tests/sim/cluster/goodput.h"
#include "tests/sim/cluster/scenario_file.h"
#include "tests/sim/cluster/summary.h"
#include "tests/sim/cluster/trace_file.h"

namespace millrace::sim {
namespace {

using ::testing::HasSubstr;

constexpr std::string_view kSource = MILLRACE_SOURCE_DIR;

Scenario load(const std::string& name, const std::vector<std::string>& settings = {}) {
  const auto scenario =
      read_scenario(str_cat(kSource, "/tests/sim/scenarios/", name, ".toml"), settings);
  EXPECT_TRUE(scenario.ok()) << scenario.status();
  return scenario.ok() ? *scenario : Scenario{};
}

PolicyChoice policy(std::string_view name) { return *parse_policy_choice(name); }

const std::vector<std::string> kAllPolicies = {"millrace",
                                               "millrace:no_buckets",
                                               "millrace:no_pull",
                                               "millrace:no_rank_choice",
                                               "round_robin",
                                               "least_requests",
                                               "least_tokens",
                                               "power_of_two",
                                               "moving_buckets",
                                               "overlap_credit",
                                               "millrace:no_variable_chunk"};

ClusterOutcome run(const Scenario& scenario, std::string_view name, std::uint64_t seed = 1) {
  const auto arrivals = make_workload(scenario, seed);
  EXPECT_TRUE(arrivals.ok()) << arrivals.status();
  return simulate_cluster(scenario, policy(name), *arrivals, seed);
}

/// Every request ended once, nobody is charged any more, and times make sense.
void expect_conserved(const ClusterOutcome& outcome, std::string_view what) {
  EXPECT_EQ(outcome.unfinished, 0) << what;
  EXPECT_EQ(outcome.charges_outstanding, 0) << what;
  for (const RequestOutcome& request : outcome.requests) {
    ASSERT_EQ(request.times_ended, 1) << what;
    ASSERT_GT(request.first_token, request.arrived) << what;
    ASSERT_GE(request.ended, request.first_token) << what;
  }
}

double worst_ttft_s(const ClusterOutcome& outcome, std::int64_t least_input,
                    std::int64_t most_input) {
  double worst = 0;
  for (const RequestOutcome& request : outcome.requests) {
    if (request.input_tokens < least_input || request.input_tokens > most_input) continue;
    worst = std::max(worst, request.ttft_s());
  }
  return worst;
}

Quantiles ttft_of(const ClusterOutcome& outcome, std::int64_t most_input,
                  std::optional<int> entrypoint = {}) {
  std::vector<double> values;
  for (const RequestOutcome& request : outcome.requests) {
    if (request.input_tokens > most_input) continue;
    if (entrypoint && request.entrypoint != *entrypoint) continue;
    values.push_back(request.ttft_s());
  }
  return quantiles_of(std::move(values));
}

TEST(ClusterSim, EveryRequestEndsOnceUnderEveryPolicyWhileInstancesDie) {
  const Scenario scenario = load("faults");
  for (const std::string& name : kAllPolicies) {
    const ClusterOutcome outcome = run(scenario, name);
    expect_conserved(outcome, name);
    EXPECT_GT(outcome.rerouted, 0) << name;
  }
}

TEST(ClusterSim, ManySeedsOfFaultsLoseNothing) {
  const char* more = std::getenv("MILLRACE_SIM_SEEDS");
  const std::uint64_t seeds = more == nullptr ? 10 : std::strtoull(more, nullptr, 10);
  const Scenario scenario = load("faults", {"horizon_s=10"});
  for (std::uint64_t seed = 2; seed < 2 + seeds; ++seed) {
    const std::string& name = kAllPolicies[seed % kAllPolicies.size()];
    expect_conserved(run(scenario, name, seed), str_cat(name, " --seed ", seed));
  }
}

TEST(ClusterSim, EqualSeedsGiveEqualRuns) {
  const Scenario scenario = load("faults");
  for (const std::string name : {"millrace", "power_of_two"}) {
    const ClusterOutcome a = run(scenario, name, 7);
    const ClusterOutcome b = run(scenario, name, 7);
    ASSERT_EQ(a.requests.size(), b.requests.size());
    EXPECT_EQ(a.events, b.events);
    for (std::size_t i = 0; i < a.requests.size(); ++i) {
      ASSERT_EQ(a.requests[i].first_token, b.requests[i].first_token);
      ASSERT_EQ(a.requests[i].ended, b.requests[i].ended);
    }
  }
}

/// One rank, Poisson arrivals of equal prompts that fit a step, each step one request: M/D/1. Mean
/// wait = ρ s ÷ (2 (1 − ρ)) (Pollaczek and Khinchine), and Little's law: L = λ W.
TEST(ClusterSim, AgreesWithQueueingTheory) {
  constexpr double kService_s = 0.1;
  for (const double utilisation : {0.3, 0.6, 0.8}) {
    Scenario scenario;
    scenario.horizon_s = 8000;
    scenario.entrypoints = 1;
    scenario.prefill_ranks = 1;
    scenario.network_delay_ms = 0;
    scenario.step_overhead_ms = 0;
    scenario.chunk_rows = 1000;  // one request a step
    scenario.cost.prefill = {.linear = 1e5};
    scenario.cost.decode = {.fixed = 1e6};
    scenario.arrivals.rate = utilisation / kService_s;
    scenario.arrivals.classes = {
        {.input_median = 1000, .input_sigma = 0, .output_median = 1, .output_sigma = 0}};
    const ClusterOutcome outcome = run(scenario, "least_tokens", 5);
    expect_conserved(outcome, "M/D/1");
    double sum = 0;
    for (const RequestOutcome& request : outcome.requests) sum += request.ttft_s();
    const auto count = static_cast<double>(outcome.requests.size());
    const double expected = kService_s + utilisation * kService_s / (2 * (1 - utilisation));
    EXPECT_NEAR(sum / count, expected, 0.05 * expected) << utilisation;
    double waiting = 0;
    for (const Sample& sample : outcome.samples) waiting += static_cast<double>(sample.waiting);
    const double mean_waiting = waiting / static_cast<double>(outcome.samples.size());
    EXPECT_NEAR(mean_waiting, count / scenario.horizon_s * sum / count, 0.08 * mean_waiting);
    EXPECT_NEAR(outcome.prefill.utilisation, utilisation, 0.03);
  }
}

/// Instances enough for every request to have one, all on one core: M/G/1 with processor sharing,
/// whose mean time is s ÷ (1 − ρ) whatever the distribution (here: equal prompts).
TEST(ClusterSim, SharesACoreAsProcessorSharingDoes) {
  for (const double utilisation : {0.3, 0.6}) {
    Scenario scenario;
    scenario.horizon_s = 3000;
    scenario.entrypoints = 1;
    scenario.prefill_instances = 64;
    scenario.prefill_ranks = 1;
    scenario.prefill_per_core = 64;
    scenario.network_delay_ms = 0;
    scenario.step_overhead_ms = 0;
    scenario.cost.prefill = {.linear = 1e5};
    scenario.cost.decode = {.fixed = 1e6};
    scenario.arrivals.rate = utilisation * 10;
    scenario.arrivals.classes = {
        {.input_median = 1000, .input_sigma = 0, .output_median = 1, .output_sigma = 0}};
    const ClusterOutcome outcome = run(scenario, "least_requests", 5);
    expect_conserved(outcome, "processor sharing");
    double sum = 0;
    for (const RequestOutcome& request : outcome.requests) sum += request.ttft_s();
    const double expected = 0.1 / (1 - utilisation);
    EXPECT_NEAR(sum / static_cast<double>(outcome.requests.size()), expected, 0.05 * expected);
  }
}

TEST(ClusterSim, LongPromptsThatFloodDoNotStarveShortOnes) {
  const Scenario scenario = load("flood");
  const ClusterOutcome ours = run(scenario, "millrace");
  const ClusterOutcome theirs = run(scenario, "least_tokens");
  expect_conserved(ours, "flood");
  EXPECT_LE(ttft_of(ours, 16'383).p99, 2.5);
  EXPECT_LT(ttft_of(ours, 16'383).p99, ttft_of(theirs, 16'383).p99);
  // Nor do short ones starve the long: 400K rows take 20 s alone on a rank.
  EXPECT_LE(worst_ttft_s(ours, 262'144, 1 << 20), 120);
}

TEST(ClusterSim, UnequalEntrypointsWaitAlike) {
  const Scenario scenario = load("unequal");
  const ClusterOutcome outcome = run(scenario, "millrace");
  expect_conserved(outcome, "unequal");
  const Quantiles busy = ttft_of(outcome, 1 << 20, 0);
  const Quantiles quiet = ttft_of(outcome, 1 << 20, 3);
  EXPECT_LE(std::max(busy.p90, quiet.p90), 1.25 * std::min(busy.p90, quiet.p90));
}

TEST(ClusterSim, ARankThatTurnsSlowCostsLittle) {
  const Scenario scenario = load("slow");
  const ClusterOutcome slow = run(scenario, "millrace");
  expect_conserved(slow, "slow");
  Scenario healthy = scenario;
  healthy.faults.clear();
  const Quantiles with = ttft_of(slow, 1 << 20);
  const Quantiles without = ttft_of(run(healthy, "millrace"), 1 << 20);
  EXPECT_LE(with.p50, 1.5 * without.p50);
  EXPECT_LE(with.p99, without.p99 + 4);
}

TEST(ClusterSim, ABurstBeforeAnyReportIsSpread) {
  // 64 equal prompts at once on 64 idle ranks, of one entrypoint that has heard of none of them.
  const Scenario scenario = load("burst");
  const ClusterOutcome outcome = run(scenario, "millrace");
  expect_conserved(outcome, "burst");
  EXPECT_LE(worst_ttft_s(outcome, 1, 1 << 20), 1.2);
}

TEST(ClusterSim, AnIdleFleetTakesAGiantRequestAtOnce) {
  const Scenario scenario = load("giant");
  const ClusterOutcome outcome = run(scenario, "millrace");
  expect_conserved(outcome, "giant");
  ASSERT_EQ(outcome.requests.size(), 1U);
  const std::int64_t rows = outcome.requests[0].input_tokens;
  const double alone_s =
      chunk_cost_ns(scenario.cost.prefill, dataplane::cost::chunk_at(rows, 0, rows)) * 1e-9;
  EXPECT_LE(outcome.requests[0].ttft_s(), 1.05 * alone_s + 0.5);
}

TEST(ClusterSim, PolicyNamesAreRefusedWithTheList) {
  EXPECT_EQ(policy("millrace:no_pull,no_buckets").name(), "millrace:no_buckets,no_pull");
  EXPECT_THAT(std::string(message_of(parse_policy_choice("millrace:no_luck").status())),
              HasSubstr("no_buckets, no_pull, no_rank_choice, no_variable_chunk"));
  EXPECT_FALSE(parse_policy_choice("least_tokens:no_pull").ok());
  EXPECT_FALSE(parse_policy_choice("best").ok());
}

std::string refusal(const std::string& setting) {
  const auto scenario =
      read_scenario(str_cat(kSource, "/tests/sim/scenarios/faults.toml"), {setting});
  return std::string(message_of(scenario.status()));
}

TEST(ScenarioFile, RefusesWhatCannotBeWithTheReason) {
  EXPECT_THAT(refusal("prefill.wheels=3"), HasSubstr("is not known; there are name, horizon_s"));
  EXPECT_THAT(refusal("prefill.ranks=0"), HasSubstr("must be a whole number from 1 to 1024"));
  EXPECT_THAT(refusal("prefill.ranks=2.5"), HasSubstr("must be a whole number"));
  EXPECT_THAT(refusal("arrivals.rate=nan"), HasSubstr("must be a number from 0"));
  EXPECT_THAT(refusal("name=3"), HasSubstr("must be text"));
  EXPECT_THAT(refusal("warmup_s=1e5"), HasSubstr("warmup_s must be less than horizon_s"));
  EXPECT_THAT(refusal("buckets.edges=512,256,1024"), HasSubstr("each above the one before"));
  EXPECT_THAT(refusal("entrypoints.shares=[1]"), HasSubstr("a share for each entrypoint"));
  EXPECT_THAT(refusal("fault.0.rank=9999"), HasSubstr("has rank 9999 of"));
  EXPECT_THAT(refusal("arrivals.trace=x"), HasSubstr("either arrivals.trace or at least one"));
  EXPECT_THAT(refusal("cost.file=/none.json"), HasSubstr("/none.json: cannot be read"));
  EXPECT_THAT(refusal("horizon"), HasSubstr("must be key=value"));
  const std::string path = ::testing::TempDir() + "/scenario.toml";
  std::ofstream(path) << "name = \"x\"\nhorizon_s = 5\n[prefill]\nranks = \"many\"\n";
  EXPECT_THAT(std::string(message_of(read_scenario(path, {}).status())),
              HasSubstr("line 4: prefill.ranks: must be a whole number"));
  EXPECT_EQ(read_scenario("/none.toml", {}).status().code(), absl::StatusCode::kNotFound);
}

TEST(ScenarioFile, MaySetTheEdgesOfBuckets) {
  const Scenario scenario = load("faults", {"buckets.edges=256,512,1024", "warmup_s=0"});
  EXPECT_EQ(scenario.bucket_edges.lower[1], 512);
  EXPECT_EQ(load("faults").bucket_edges, dataplane::routing::BucketEdges{});
  ClusterOutcome outcome;
  outcome.requests.resize(2);
  outcome.requests[0].input_tokens = 300;
  outcome.requests[1].input_tokens = 5000;
  EXPECT_THAT(summarize(scenario, outcome).bucket_requests, testing::ElementsAre(0, 1, 0, 1));
}

TEST(ScenarioFile, ScalesLoadsExactly) {
  Scenario scenario = load("conversation");
  const Scenario scaled = scale_load(scenario, 0.777);
  EXPECT_NEAR(static_cast<double>(scaled.arrivals.copies) * scaled.arrivals.speed, 800 * 0.777,
              1e-6);
  EXPECT_EQ(scaled.arrivals.copies, 622);
}

TEST(TraceFile, ReadsPublishedTracesWithIdealHits) {
  const auto rows =
      read_trace_rows(str_cat(kSource, "/tests/data/mooncake_conversation_500.jsonl.gz"), 0, 0);
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_EQ(rows->size(), 500U);
  EXPECT_EQ((*rows)[1].input_tokens, 7322);
  EXPECT_EQ((*rows)[1].cached_tokens, 384);  // one block of 512, less the 128 run again
  EXPECT_EQ((*rows)[1].parent, 0);
  std::int64_t all = 0;
  for (const TraceRow& row : *rows) all += row.cached_tokens;
  std::int64_t bounded = 0;
  const auto small =
      read_trace_rows(str_cat(kSource, "/tests/data/mooncake_conversation_500.jsonl.gz"), 0, 100);
  for (const TraceRow& row : *small) bounded += row.cached_tokens;
  EXPECT_LT(bounded, all);
  const auto azure =
      read_trace_rows(str_cat(kSource, "/tests/data/azure_llm_2023_conv_500.csv.gz"), 10, 0);
  ASSERT_TRUE(azure.ok()) << azure.status();
  EXPECT_EQ((*azure)[1].input_tokens, 396);
  EXPECT_NEAR(static_cast<double>((*azure)[1].at), 4.31 * 1e9, 1e7);
}

TEST(TraceFile, DamageIsNamedByLine) {
  const std::string path = ::testing::TempDir() + "/trace.jsonl";
  std::ofstream(path)
      << R"({"timestamp": 5, "input_length": 3, "output_length": 1, "hash_ids": []})"
      << "\n"
      << R"({"timestamp": 4, "input_length": 3, "output_length": 1, "hash_ids": []})"
      << "\n";
  EXPECT_THAT(std::string(message_of(read_trace_rows(path, 0, 0).status())),
              HasSubstr("line 2: is earlier"));
  std::ofstream(path) << "{\"timestamp\": 5}\n";
  EXPECT_THAT(std::string(message_of(read_trace_rows(path, 0, 0).status())), HasSubstr("line 1"));
  EXPECT_EQ(read_trace_rows("/none", 0, 0).status().code(), absl::StatusCode::kNotFound);
}

TEST(Reports, ArePlainAndSelfContained) {
  Scenario scenario = load("burst");
  scenario.name = "<burst>";
  ClusterOutcome outcome = run(scenario, "millrace");
  Summary summary = summarize(scenario, outcome);
  EXPECT_EQ(summary.requests, 64);
  EXPECT_EQ(summary.within_limits, 1);
  EXPECT_THAT(to_table(scenario, {{summary}}), HasSubstr("millrace"));
  EXPECT_THAT(to_json(scenario, 1, std::vector<Summary>{summary}), HasSubstr("\"ttft_s\""));
  const std::vector<ReportedRun> runs = {{summary, std::move(outcome)}};
  const std::string html = to_html(scenario, 1, runs);
  EXPECT_THAT(html, HasSubstr("&lt;burst&gt;"));
  EXPECT_THAT(html, ::testing::Not(HasSubstr("http")));
}

TEST(Summaries, SayWhatIsServedHoweverMuchArrives) {
  const Scenario scenario = load("unequal", {"horizon_s=20"});
  const auto served = [&](double factor) {
    const Scenario scaled = scale_load(scenario, factor);
    return summarize(scaled, run(scaled, "least_tokens", 3));
  };
  const Summary light = served(0.3);
  EXPECT_NEAR(light.served_per_s, light.offered_per_s, 0.1 * light.offered_per_s);
  // Beyond what the ranks can do it stays the same.
  const Summary twice = served(2);
  const Summary thrice = served(3);
  EXPECT_LT(twice.served_per_s, 0.8 * twice.offered_per_s);
  EXPECT_NEAR(thrice.served_per_s, twice.served_per_s, 0.1 * twice.served_per_s);
}

TEST(Goodput, IsBetweenALoadThatMeetsTheLimitsAndOneThatDoesNot) {
  const Scenario scenario = load("unequal", {"horizon_s=10"});
  const auto found = find_goodput(scenario, policy("millrace"), 3);
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_GT(found->factor, 0);
  EXPECT_GE(found->summary.within_limits, scenario.limit_share);
  const Scenario beyond = scale_load(scenario, found->factor * 1.05);
  EXPECT_LT(summarize(beyond, run(beyond, "millrace", 3)).within_limits, scenario.limit_share);
}

}  // namespace
}  // namespace millrace::sim
