// What the decisions of an entrypoint and of a prefill worker cost in a large fleet. Each one is
// timed by itself.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "api/entrypoint/balancer.h"
#include "common/str_cat.h"
#include "dataplane/routing/decode_rank.h"
#include "dataplane/routing/prefill_claim.h"
#include "tests/bench/stopwatch.h"

namespace {

namespace routing = millrace::dataplane::routing;
using millrace::TimePoint;
using millrace::api::admin::WorkerRole;
using millrace::api::entrypoint::Balancer;
using millrace::api::entrypoint::WorkerState;
using millrace::tests::bench::ClockKind;
using millrace::tests::bench::Stopwatch;

struct Options {
  int ranks = 4096;
  int waiting = 100'000;
  int decisions = 20'000;
};

void measure(const char* name, const Options& options, const std::function<void()>& decide) {
  std::vector<double> micros;
  micros.reserve(static_cast<std::size_t>(options.decisions));
  for (int i = 0; i < options.decisions; ++i) {
    const Stopwatch watch(ClockKind::kCpu);
    decide();
    micros.push_back(watch.seconds() * 1e6);
  }
  std::sort(micros.begin(), micros.end());
  const auto at = [&](double share) {
    return micros[static_cast<std::size_t>(share * static_cast<double>(micros.size() - 1))];
  };
  std::printf(
      "{\"case\": \"%s\", \"ranks\": %d, \"waiting\": %d, \"p50_us\": %.2f, \"p99_us\": %.2f, "
      "\"max_us\": %.2f}\n",
      name, options.ranks, options.waiting, at(0.5), at(0.99), micros.back());
}

std::vector<std::string> names_of(const char* role, int count) {
  std::vector<std::string> names;
  names.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) names.push_back(millrace::str_cat(role, "-", i));
  return names;
}

/// All that an entrypoint decides when a prefill worker claims a request, the worker's new load
/// included, and when a request comes in its place: the queue keeps its size, and every worker
/// wants more.
void measure_grants(const Options& options) {
  std::mt19937_64 random(1);
  Balancer balancer({});
  const std::vector<std::string> workers = names_of("prefill", options.ranks);
  WorkerState state{.role = WorkerRole::kPrefill,
                    .is_accepting = true,
                    .wants_more = true,
                    .kv_blocks_total = 1 << 20};
  for (const std::string& worker : workers) balancer.set_worker(worker, state);
  routing::RequestNumber next = 0;
  const auto add = [&](std::int64_t tokens) {
    ++next;
    return balancer.add({.request = next,
                         .tokens = tokens,
                         .kv_blocks = tokens / 128,
                         .since = TimePoint(std::chrono::nanoseconds(next))});
  };
  constexpr std::array<std::int64_t, routing::kBucketCount> kLengths = {1'000, 20'000, 90'000,
                                                                        400'000};
  bool is_full = false;
  for (int i = 0; i < options.waiting; ++i) is_full = is_full || !add(kLengths[random() % 4]).ok();
  int bucket = 0;
  std::size_t told = 0;
  measure("grant", options, [&] {
    bucket = (bucket + 1) % routing::kBucketCount;
    const std::string& worker = workers[random() % workers.size()];
    is_full = is_full || !balancer.grant(worker, bucket);
    state.load.quota_ns = static_cast<std::int64_t>(random() % 600'000'000);
    balancer.set_worker(worker, state);
    is_full = is_full || !add(kLengths[static_cast<std::size_t>(bucket)]).ok();
    told += balancer.take_news(TimePoint(std::chrono::nanoseconds(next))).size();
  });
  std::fprintf(stderr, "grant: %zu offers sent%s\n", told, is_full ? "; SOME WERE REFUSED" : "");
}

/// The choice of a decode worker, with its charge.
void measure_live_decode(const Options& options) {
  std::mt19937_64 random(4);
  Balancer balancer({});
  const std::vector<std::string> workers = names_of("decode", options.ranks);
  std::map<std::string, WorkerState> states;
  for (const std::string& worker : workers) {
    WorkerState& state = states[worker];
    state.role = WorkerRole::kDecode;
    state.is_accepting = true;
    state.kv_blocks_total = 1 << 20;
    state.load = {.requests = static_cast<std::int64_t>(random() % 64),
                  .kv_tokens = static_cast<std::int64_t>(random() % 900'000)};
    balancer.set_worker(worker, state);
  }
  measure("decode_pick", options, [&] {
    const auto tokens = static_cast<std::int64_t>(1 + random() % 150'000);
    const auto worker = balancer.choose_decode({tokens, tokens / 128 + 1, tokens});
    WorkerState& state = states.at(*worker);
    ++state.load.requests;
    state.load.kv_tokens += tokens;
    balancer.set_worker(*worker, state);
  });
}

void measure_decode(const Options& options, std::size_t look, const char* name) {
  std::mt19937_64 random(2);
  std::vector<routing::DecodeRank> ranks(static_cast<std::size_t>(options.ranks));
  for (routing::DecodeRank& rank : ranks) {
    rank = {static_cast<std::int64_t>(random() % 64), static_cast<std::int64_t>(random() % 900'000),
            200'000, true};
  }
  const routing::DecodeTotals totals = routing::totals_of(ranks);
  std::size_t chosen = 0;
  measure(name, options, [&] {
    const auto tokens = static_cast<std::int64_t>(1 + random() % 150'000);
    chosen += *routing::pick_decode_rank({tokens, tokens}, tokens, totals, ranks, {random(), look});
  });
  std::fprintf(stderr, "%s: checksum %zu\n", name, chosen);
}

/// An instance of 8 ranks chooses among the offers of 16 entrypoints.
void measure_claims(const Options& options) {
  std::mt19937_64 random(3);
  std::vector<routing::Offers> offers(16);
  for (routing::Offers& of_entrypoint : offers) {
    for (routing::Advertisement& offer : of_entrypoint) {
      offer = {TimePoint(std::chrono::nanoseconds(random() % 1'000'000)), 1, 1};
    }
  }
  const std::vector<std::int64_t> queued = {5, 3, 8, 2, 9, 4, 7, 6};
  std::size_t chosen = 0;
  measure("claim_and_rank", options, [&] {
    chosen += routing::choose_claim(offers, {true, false, true, false})->entrypoint;
    chosen += routing::pick_rank(queued);
  });
  std::fprintf(stderr, "claim_and_rank: checksum %zu\n", chosen);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Cost of a routing decision, microseconds on a core.", "millrace-routing-bench");
  Options options;
  app.add_option("--ranks", options.ranks)->check(CLI::Range(1, 1 << 20))->capture_default_str();
  app.add_option("--waiting", options.waiting)
      ->check(CLI::Range(4, 1 << 24))
      ->capture_default_str();
  app.add_option("--decisions", options.decisions)
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  measure_grants(options);
  measure_claims(options);
  measure_live_decode(options);
  measure_decode(options, static_cast<std::size_t>(options.ranks), "decode_pick_of_all");
}
