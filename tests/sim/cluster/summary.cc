#include "tests/sim/cluster/summary.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "common/json.h"
#include "common/str_cat.h"

namespace millrace::sim {
namespace {

std::string fixed(double value, int digits) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

const std::vector<std::string>& heads() {
  static const std::vector<std::string> kHeads = {
      "policy",    "TTFT p50 s",       "p99 s",  "TPOT p50 ms",   "p99 ms", "in limits %", "good/s",
      "offered/s", "prefill max/mean", "decode", "prefill busy %"};
  return kHeads;
}

std::vector<std::string> cells_of(const Summary& s) {
  return {s.policy,
          fixed(s.ttft_s.p50, 3),
          fixed(s.ttft_s.p99, 2),
          fixed(s.tpot_ms.p50, 1),
          fixed(s.tpot_ms.p99, 1),
          fixed(100 * s.within_limits, 2),
          fixed(s.goodput_per_s, 1),
          fixed(s.offered_per_s, 1),
          fixed(s.prefill_max_over_mean, 3),
          fixed(s.decode_max_over_mean, 3),
          fixed(100 * s.prefill_utilisation, 1)};
}

Json to_json(const Quantiles& q) {
  return {{"p50", q.p50}, {"p90", q.p90}, {"p99", q.p99}, {"max", q.max}, {"mean", q.mean}};
}

Json to_json(const Summary& s) {
  Json buckets = Json::array();
  for (std::size_t b = 0; b < s.bucket_requests.size(); ++b) {
    buckets.push_back(
        {{"requests", s.bucket_requests[b]}, {"ttft_s", to_json(s.bucket_ttft_s[b])}});
  }
  return {{"policy", s.policy},
          {"requests", s.requests},
          {"offered_per_s", s.offered_per_s},
          {"ttft_s", to_json(s.ttft_s)},
          {"tpot_ms", to_json(s.tpot_ms)},
          {"within_limits", s.within_limits},
          {"goodput_per_s", s.goodput_per_s},
          {"served_per_s", s.served_per_s},
          {"prefill_max_over_mean", s.prefill_max_over_mean},
          {"decode_max_over_mean", s.decode_max_over_mean},
          {"prefill_utilisation", s.prefill_utilisation},
          {"decode_utilisation", s.decode_utilisation},
          {"by_input_length", buckets},
          {"rerouted", s.rerouted},
          {"unfinished", s.unfinished},
          {"claims_gone", s.claims_gone},
          {"simulated_requests_per_minute", s.simulated_per_minute}};
}

}  // namespace

Quantiles quantiles_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    const double rank = std::ceil(share * static_cast<double>(values.size()));
    return values[static_cast<std::size_t>(std::max(rank, 1.0)) - 1];
  };
  double sum = 0;
  for (const double value : values) sum += value;
  return {at(0.5), at(0.9), at(0.99), values.back(), sum / static_cast<double>(values.size())};
}

Summary summarize(const Scenario& scenario, const ClusterOutcome& outcome) {
  Summary summary;
  summary.policy = outcome.policy;
  const auto begin = static_cast<SimTime>(scenario.warmup_s * 1e9);
  const auto end = static_cast<SimTime>(scenario.horizon_s * 1e9);
  std::vector<double> ttft;
  std::vector<double> tpot;
  std::array<std::vector<double>, dataplane::routing::kBucketCount> by_bucket;
  std::int64_t good = 0;
  std::int64_t served = 0;
  for (const RequestOutcome& request : outcome.requests) {
    served += request.first_token >= begin && request.first_token <= end ? 1 : 0;
    if (request.arrived < begin || request.arrived > end) continue;
    const bool is_started = request.first_token >= 0;
    const double waited = is_started ? request.ttft_s()
                                     : scenario.horizon_s + scenario.drain_s -
                                           static_cast<double>(request.arrived) * 1e-9;
    ttft.push_back(waited);
    const auto b = static_cast<std::size_t>(
        dataplane::routing::bucket_of(request.input_tokens, scenario.bucket_edges));
    by_bucket[b].push_back(waited);
    if (request.ended < 0) continue;
    if (request.output_tokens > 1) tpot.push_back(request.tpot_ms());
    const bool is_good =
        waited <= scenario.ttft_limit_s && request.tpot_ms() <= scenario.tpot_limit_ms;
    good += is_good ? 1 : 0;
  }
  const double seconds = scenario.horizon_s - scenario.warmup_s;
  summary.requests = std::ssize(ttft);
  const double count = std::max(static_cast<double>(summary.requests), 1.0);
  summary.offered_per_s = static_cast<double>(summary.requests) / seconds;
  summary.within_limits = static_cast<double>(good) / count;
  summary.goodput_per_s = static_cast<double>(good) / seconds;
  summary.served_per_s = static_cast<double>(served) / seconds;
  for (std::size_t b = 0; b < by_bucket.size(); ++b) {
    summary.bucket_requests[b] = std::ssize(by_bucket[b]);
    summary.bucket_ttft_s[b] = quantiles_of(std::move(by_bucket[b]));
  }
  summary.ttft_s = quantiles_of(std::move(ttft));
  summary.tpot_ms = quantiles_of(std::move(tpot));
  summary.prefill_max_over_mean = outcome.prefill.max_over_mean;
  summary.decode_max_over_mean = outcome.decode.max_over_mean;
  summary.prefill_utilisation = outcome.prefill.utilisation;
  summary.decode_utilisation = outcome.decode.utilisation;
  summary.rerouted = outcome.rerouted;
  summary.unfinished = outcome.unfinished;
  summary.claims_gone = outcome.claims_gone;
  summary.simulated_per_minute =
      static_cast<double>(outcome.requests.size()) * 60 / std::max(outcome.wall_s, 1e-9);
  return summary;
}

std::string to_table(const Scenario& scenario, std::span<const Summary> summaries) {
  std::vector<std::vector<std::string>> rows = {heads()};
  for (const Summary& summary : summaries) rows.push_back(cells_of(summary));
  std::vector<std::size_t> widths(heads().size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string table = str_cat(scenario.name, ": limits TTFT ", scenario.ttft_limit_s, " s, TPOT ",
                              scenario.tpot_limit_ms, " ms\n");
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string space(widths[i] - row[i].size(), ' ');
      if (i == 0) table.append(row[i]).append(space);
      if (i > 0) table.append("  ").append(space).append(row[i]);
    }
    table.append("\n");
  }
  return table;
}

std::string to_markdown(std::span<const Summary> summaries) {
  std::string table = "|";
  for (const std::string& head : heads()) table.append(" ").append(head).append(" |");
  table.append("\n|");
  for (std::size_t i = 0; i < heads().size(); ++i) table.append(i == 0 ? " --- |" : " ---: |");
  for (const Summary& summary : summaries) {
    table.append("\n|");
    for (const std::string& cell : cells_of(summary)) {
      table.append(" ").append(cell).append(" |");
    }
  }
  return table.append("\n");
}

std::string to_json(const Scenario& scenario, std::uint64_t seed,
                    std::span<const Summary> summaries) {
  Json policies = Json::array();
  for (const Summary& summary : summaries) policies.push_back(to_json(summary));
  const Json report = {{"scenario", scenario.name},
                       {"seed", seed},
                       {"ttft_limit_s", scenario.ttft_limit_s},
                       {"tpot_limit_ms", scenario.tpot_limit_ms},
                       {"policies", policies}};
  return str_cat(dump_json_pretty(report), "\n");
}

}  // namespace millrace::sim
