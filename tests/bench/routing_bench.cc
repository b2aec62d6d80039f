// What a routing decision costs: a grant out of many waiting requests, and the choice of a decode
// rank among many. Each decision is timed by itself.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <random>
#include <vector>

#include "dataplane/routing/decode_rank.h"
#include "dataplane/routing/prefill_claim.h"
#include "dataplane/routing/prefill_queue.h"
#include "tests/bench/stopwatch.h"

namespace {

namespace routing = millrace::dataplane::routing;
using millrace::TimePoint;
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

/// Grants keep the queue at its size: each granted request is replaced by a new one.
void measure_grants(const Options& options) {
  std::mt19937_64 random(1);
  routing::PrefillQueue queue(static_cast<std::size_t>(options.waiting) + 1);
  routing::RequestNumber next = 0;
  const auto add = [&] {
    ++next;
    return queue.push(static_cast<int>(random() % routing::kBucketCount),
                      {next, static_cast<std::int64_t>(random() % 1'000'000'000),
                       TimePoint(std::chrono::nanoseconds(next))});
  };
  bool is_full = false;
  for (int i = 0; i < options.waiting; ++i) is_full = is_full || !add().ok();
  int bucket = 0;
  measure("grant_and_queue", options, [&] {
    bucket = (bucket + 1) % routing::kBucketCount;
    queue.grant(bucket);
    is_full = is_full || !add().ok();
  });
  if (is_full) std::puts("the queue was full");
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
  measure_decode(options, 16, "decode_pick_16");
  measure_decode(options, static_cast<std::size_t>(options.ranks), "decode_pick_all");
}
