// millrace-tokenizer-bench: how fast texts become tokens, and what loading a tokenizer costs.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "api/tokenizer/encode_pool.h"
#include "api/tokenizer/tokenizer.h"
#include "common/check.h"
#include "common/json.h"
#include "common/mapped_file.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "tests/bench/stopwatch.h"

namespace millrace::tests::bench {
namespace {

using api::tokenizer::EncodePool;
using api::tokenizer::Tokenizer;
using Ids = absl::StatusOr<std::vector<TokenId>>;

struct Options {
  std::string tokenizer = "deploy/models/nano/tokenizer.json";
  std::vector<std::string> texts;
  int threads = 2;
  int repetitions = 9;
  ClockKind clock = ClockKind::kWall;
  bool json = false;
};

struct TextResult {
  std::string name;
  std::size_t bytes = 0;
  std::size_t tokens = 0;
  double alone_mb_per_s = 0;   ///< one thread
  double shared_mb_per_s = 0;  ///< all threads; 0 where the clock cannot tell
  double count_mb_per_s = 0;   ///< counting, one thread
  double machine_gain = 0;     ///< what the threads gain on arithmetic alone, measured beside
};

/// The value of a line of /proc/self/status, in MB.
double memory_mb(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    double kilobytes = 0;
    if (word == key && status >> kilobytes) return kilobytes * 1024 / 1e6;
  }
  return 0;
}

/// Seconds of one call: the median of the repetitions. Short calls are repeated within one
/// measurement, so that each takes a few milliseconds at least.
template <typename Call>
double median_seconds(const Options& options, const Call& call) {
  const Stopwatch first(options.clock);
  call();
  const int calls = static_cast<int>(std::clamp(0.005 / std::max(first.seconds(), 1e-6), 1.0, 1e4));
  std::vector<double> seconds(static_cast<std::size_t>(options.repetitions));
  for (double& s : seconds) {
    const Stopwatch watch(options.clock);
    for (int i = 0; i < calls; ++i) call();
    s = watch.seconds() / calls;
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

/// A unit of work that needs nothing but a core: half a millisecond of shifts that each wait for
/// the one before.
void shift_bits() {
  constexpr int kRounds = 300'000;
  static std::atomic<std::uint64_t> sink;  // or the compiler would leave it all out
  std::uint64_t bits = 88172645463325252;
  for (int i = 0; i < kRounds; ++i) {
    bits ^= bits << 13;
    bits ^= bits >> 7;
    bits ^= bits << 17;
  }
  sink = bits;
}

/// Speeds of one thread and of the pool's, with the calls of both in turn, so that other work on
/// the machine hits both alike.
struct Gain {
  double alone_seconds = 0;
  double shared_seconds = 0;
};
template <typename Alone, typename Shared>
Gain median_gain(const Options& options, const Alone& alone, const Shared& shared) {
  std::vector<double> alone_seconds;
  std::vector<double> shared_seconds;
  Options once = options;
  once.repetitions = 1;
  for (int i = 0; i < options.repetitions; ++i) {
    alone_seconds.push_back(median_seconds(once, alone));
    shared_seconds.push_back(median_seconds(once, shared));
  }
  const auto median = [](std::vector<double>& seconds) {
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
  };
  return {median(alone_seconds), median(shared_seconds)};
}

absl::StatusOr<TextResult> measure(const Options& options, const Tokenizer& tokenizer,
                                   EncodePool& pool, const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, read_file(path));
  ASSIGN_OR_RETURN(const std::vector<TokenId> ids, tokenizer.encode_with_special(text));
  ASSIGN_OR_RETURN(const std::vector<TokenId> shared, tokenizer.encode_with_special(text, &pool));
  if (ids != shared) return absl::InternalError(str_cat(path, ": the ids depend on the threads"));
  const double megabytes = static_cast<double>(text.size()) / 1e6;
  TextResult result{
      .name = path.substr(path.find_last_of('/') + 1), .bytes = text.size(), .tokens = ids.size()};
  const auto check = [&](const Ids& again) { CHECK(again.ok() && again->size() == ids.size()); };
  const auto alone = [&] { check(tokenizer.encode_with_special(text)); };
  result.count_mb_per_s =
      megabytes / median_seconds(options, [&] { CHECK(tokenizer.count_text(text).ok()); });
  if (options.clock == ClockKind::kWall) {
    const Gain gain =
        median_gain(options, alone, [&] { check(tokenizer.encode_with_special(text, &pool)); });
    result.alone_mb_per_s = megabytes / gain.alone_seconds;
    result.shared_mb_per_s = megabytes / gain.shared_seconds;
    const std::size_t units = std::size_t{8} * static_cast<std::size_t>(options.threads);
    const Gain machine = median_gain(
        options,
        [&] {
          for (std::size_t i = 0; i < units; ++i) shift_bits();
        },
        [&] { pool.run(units, [](std::size_t) { shift_bits(); }); });
    result.machine_gain = machine.alone_seconds / machine.shared_seconds;
  } else {
    result.alone_mb_per_s = megabytes / median_seconds(options, alone);
  }
  return result;
}

void print(const TextResult& result, const Options& options) {
  if (options.json) {
    std::cout << dump_json(Json{{"text", result.name},
                                {"bytes", result.bytes},
                                {"tokens", result.tokens},
                                {"mb_per_s", result.alone_mb_per_s},
                                {"threads_mb_per_s", result.shared_mb_per_s},
                                {"machine_gain", result.machine_gain},
                                {"count_mb_per_s", result.count_mb_per_s}})
              << "\n";
    return;
  }
  std::cout << std::left << std::setw(24) << result.name << std::right << std::fixed
            << std::setprecision(1) << std::setw(10) << result.bytes << std::setw(9)
            << result.tokens << std::setw(10) << result.alone_mb_per_s << std::setw(10)
            << result.shared_mb_per_s << std::setw(10) << result.count_mb_per_s
            << std::setprecision(2) << std::setw(10) << result.machine_gain << "\n";
}

absl::Status run(const Options& options) {
  const double before_mb = memory_mb("VmRSS:");
  const Stopwatch watch(options.clock);
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, Tokenizer::open(options.tokenizer));
  const double load_ms = watch.seconds() * 1e3;
  const double resident_mb = memory_mb("VmRSS:");
  if (options.json) {
    std::cout << dump_json(Json{{"load_ms", load_ms},
                                {"resident_mb", resident_mb},
                                {"peak_mb", memory_mb("VmHWM:")}})
              << "\n";
  } else {
    std::cout << std::fixed << std::setprecision(1) << "loaded in " << load_ms << " ms; resident "
              << resident_mb << " MB (" << before_mb << " before), at most " << memory_mb("VmHWM:")
              << " MB meanwhile\n\n"
              << "text                         bytes   tokens      MB/s  " << options.threads
              << " thr.  counting  machine's gain\n";
  }
  EncodePool pool(options.threads - 1);
  for (const std::string& path : options.texts) {
    ASSIGN_OR_RETURN(const TextResult result, measure(options, *tokenizer, pool, path));
    print(result, options);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace millrace::tests::bench

int main(int argc, char** argv) {
  using namespace millrace;  // NOLINT(build/namespaces): main is not in our namespace
  CLI::App app("Measures loading a tokenizer.json and encoding texts with it (MB are 10^6 bytes).",
               "millrace-tokenizer-bench");
  tests::bench::Options options;
  app.add_option("--tokenizer", options.tokenizer, "A tokenizer.json")->capture_default_str();
  app.add_option("texts", options.texts, "Text files of at most 64 MB");
  app.add_option("--threads", options.threads, "Threads of the column beside that of one thread")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app.add_option("--reps", options.repetitions, "Measurements of each figure; the median counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  const std::map<std::string, tests::bench::ClockKind> clocks = {
      {"wall", tests::bench::ClockKind::kWall}, {"cpu", tests::bench::ClockKind::kCpu}};
  app.add_option("--clock", options.clock,
                 "wall, or cpu: time on a core, for a busy machine; leaves out several threads")
      ->transform(CLI::CheckedTransformer(clocks));
  app.add_flag("--json", options.json, "One JSON object a line instead of a table");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = tests::bench::run(options);
  if (status.ok()) return 0;
  std::cerr << "millrace-tokenizer-bench: " << message_of(status) << "\n";
  return 1;
}
