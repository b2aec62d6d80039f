// millrace-engine-bench: how fast the CPU engine is, and how fast this machine would let it be.
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <iomanip>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/check.h"
#include "common/json.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "dataplane/engine/engine.h"
#include "dataplane/model/checkpoint.h"
#include "dataplane/model/random_checkpoint.h"
#include "tests/bench/machine_limits.h"
#include "tests/bench/model_work.h"
#include "tests/bench/stopwatch.h"

namespace millrace::tests::bench {
namespace {

using dataplane::engine::Engine;
using dataplane::engine::SequenceId;
using dataplane::engine::StepItem;
using dataplane::model::Checkpoint;

constexpr int kPromptTokens = 512;
constexpr int kContextTokens = 256;    ///< of every decoding sequence at the start
constexpr int kCapacityTokens = 1024;  ///< where a decoding sequence starts over
constexpr int kStepRows = 256;         ///< the worker's default
constexpr std::size_t kBandwidthBytes = std::size_t{512} << 20;

struct Options {
  std::string preset_folder = "build/bench-cpu-preset";
  std::string nano_folder = "deploy/models/nano";
  std::string only;
  int threads = 1;
  double seconds = 3;
  ClockKind clock = ClockKind::kWall;
  bool json = false;
};

/// Best rates of something and of what bounds it.
struct Rates {
  double measured = 0;
  double bound = 0;
};

/// Measures both in turn for at least the given time, after one run to warm up. In turn, and the
/// best of each: what else the machine does can only slow them down, and should slow down both
/// alike.
Rates best_rates(double seconds, const std::function<double()>& measure,
                 const std::function<double()>& bound) {
  measure();
  Rates best;
  int runs = 0;
  for (const Stopwatch watch(ClockKind::kWall); watch.seconds() < seconds || runs < 3; ++runs) {
    best.measured = std::max(best.measured, measure());
    best.bound = std::max(best.bound, bound());
  }
  return best;
}

double no_bound() { return 0; }

/// A loaded model and an engine over it.
class Subject {
 public:
  static absl::StatusOr<std::unique_ptr<Subject>> open(const std::string& folder,
                                                       const Options& options) {
    auto subject = std::make_unique<Subject>();
    subject->clock_ = options.clock;
    ASSIGN_OR_RETURN(subject->checkpoint_, Checkpoint::open(folder));
    ASSIGN_OR_RETURN(subject->engine_,
                     dataplane::engine::open_cpu_engine(*subject->checkpoint_, {},
                                                        {.kv_blocks = 1024,
                                                         .max_sequences = 64,
                                                         .max_step_rows = kStepRows,
                                                         .threads = options.threads}));
    return subject;
  }

  const dataplane::model::ModelConfig& config() const { return checkpoint_->config(); }

  /// Prompt tokens per second of a prompt that ends with one row of logits.
  double prefill_rate() {
    const Stopwatch watch(clock_);
    const SequenceId id = prefill(kPromptTokens, kPromptTokens);
    const double took = watch.seconds();
    engine_->release(id);
    return kPromptTokens / took;
  }

  /// Sequences for decode_rate(), each with a context.
  void begin_decode(int batch) {
    for (const SequenceId id : decoding_) engine_->release(id);
    decoding_.clear();
    for (int i = 0; i < batch; ++i) decoding_.push_back(prefill(kContextTokens, kCapacityTokens));
  }

  /// Tokens per second of all sequences of a batch together.
  double decode_rate() {
    constexpr int kSteps = 16;
    if (engine_->length(decoding_.front()) + kSteps > kCapacityTokens) {
      begin_decode(static_cast<int>(decoding_.size()));
    }
    const Stopwatch watch(clock_);
    for (int step = 0; step < kSteps; ++step) decode_step(decoding_);
    return kSteps * static_cast<double>(decoding_.size()) / watch.seconds();
  }

 private:
  TokenId next_token() {
    return static_cast<TokenId>(random_() % static_cast<unsigned>(config().vocab_size));
  }

  void step(const std::vector<StepItem>& items) {
    const absl::Status status = engine_->step(items, logits_);
    CHECK(status.ok(), "the bench asked for an impossible step");
  }

  SequenceId prefill(int tokens, int capacity) {
    auto id = engine_->create({.prompt_tokens = tokens, .capacity_tokens = capacity});
    CHECK(id.ok(), "the bench's sequences fit its pool");
    for (int done = 0; done < tokens; done += kStepRows) {
      std::vector<TokenId> chunk(static_cast<std::size_t>(std::min(kStepRows, tokens - done)));
      for (TokenId& token : chunk) token = next_token();
      const bool last = done + kStepRows >= tokens;
      step({{.sequence = *id, .tokens = chunk, .logits_rows = last ? 1 : 0}});
    }
    return *id;
  }

  void decode_step(const std::vector<SequenceId>& ids) {
    std::vector<TokenId> tokens(ids.size());
    std::vector<StepItem> items;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      tokens[i] = next_token();
      items.push_back({.sequence = ids[i], .tokens = {&tokens[i], 1}, .logits_rows = 1});
    }
    step(items);
  }

  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<Engine> engine_;
  ClockKind clock_ = ClockKind::kWall;
  std::vector<SequenceId> decoding_;
  std::vector<float> logits_;
  std::mt19937 random_{1};
};

absl::Status make_preset(const std::string& folder) {
  struct stat info;
  // The index is written last: a folder that has it is complete.
  if (::stat((folder + "/model.safetensors.index.json").c_str(), &info) == 0) {
    return absl::OkStatus();
  }
  std::cerr << "writing a random checkpoint to " << folder << "\n";
  return dataplane::model::write_random_checkpoint(folder, cpu_preset_config(), 1, 4);
}

/// Results in the order of measurement, with a line of text for each.
class Report {
 public:
  void add(const std::string& key, double value, const std::string& text) {
    json_[key] = value;
    lines_.push_back(text);
  }
  void print(bool as_json) const {
    if (as_json) {
      std::cout << dump_json(json_) << "\n";
      return;
    }
    for (const std::string& line : lines_) std::cout << line << "\n";
  }

 private:
  Json json_ = Json::object();
  std::vector<std::string> lines_;
};

std::string fixed(double value, int decimals) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(decimals) << value;
  return out.str();
}

bool wanted(const Options& options, std::string_view part) {
  return options.only.empty() || options.only == part;
}

absl::Status measure_preset(const Options& options, Report& report) {
  if (!wanted(options, "prefill") && !wanted(options, "decode")) return absl::OkStatus();
  RETURN_IF_ERROR(make_preset(options.preset_folder));
  ASSIGN_OR_RETURN(const std::unique_ptr<Subject> subject,
                   Subject::open(options.preset_folder, options));
  const ModelWork work = count_work(subject->config());
  report.add("preset_parameters", work.parameters,
             str_cat("cpu preset: ", fixed(work.parameters / 1e6, 1), " M parameters, ",
                     fixed(work.active_bytes / 1e6, 1), " MB read per decoded token"));
  if (wanted(options, "prefill")) {
    const Rates rates = best_rates(
        options.seconds, [&] { return subject->prefill_rate(); },
        [&] { return peak_flops(options.threads, options.clock); });
    const double rate = rates.measured;
    const double peak = rates.bound;
    const double flops =
        prefill_flops(subject->config(), work, kPromptTokens) / kPromptTokens * rate;
    report.add("peak_gflops", peak / 1e9,
               str_cat("  float32 multiply-add peak    ", fixed(peak / 1e9, 1), " GFLOP/s"));
    report.add("preset_prefill_tokens_per_s", rate,
               str_cat("  prefill of ", kPromptTokens, " tokens        ", fixed(rate, 1),
                       " tokens/s, ", fixed(flops / 1e9, 1), " GFLOP/s in matrices"));
    report.add("preset_prefill_peak_fraction", flops / peak,
               str_cat("  fraction of that peak        ", fixed(flops / peak, 3)));
  }
  if (wanted(options, "decode")) {
    const ReadBandwidth reading(options.threads, kBandwidthBytes);
    subject->begin_decode(1);
    const Rates rates = best_rates(
        options.seconds, [&] { return subject->decode_rate(); },
        [&] { return reading.measure(options.clock); });
    const double rate = rates.measured;
    const double bandwidth = rates.bound;
    const double bound = bandwidth / work.active_bytes;
    report.add("read_bandwidth_gb_per_s", bandwidth / 1e9,
               str_cat("  read bandwidth               ", fixed(bandwidth / 1e9, 1), " GB/s"));
    report.add("preset_decode_tokens_per_s", rate,
               str_cat("  decode at batch 1            ", fixed(rate, 1), " tokens/s of at most ",
                       fixed(bound, 1)));
    report.add("preset_decode_bandwidth_fraction", rate / bound,
               str_cat("  fraction of that bound       ", fixed(rate / bound, 3)));
  }
  return absl::OkStatus();
}

absl::Status measure_nano(const Options& options, Report& report) {
  if (!wanted(options, "nano-prefill") && !wanted(options, "nano-decode")) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::unique_ptr<Subject> subject,
                   Subject::open(options.nano_folder, options));
  const ModelWork work = count_work(subject->config());
  report.add("nano_parameters", work.parameters,
             str_cat("nano: ", fixed(work.parameters / 1e6, 1), " M parameters"));
  if (wanted(options, "nano-prefill")) {
    const double rate = best_rates(
                            options.seconds, [&] { return subject->prefill_rate(); }, no_bound)
                            .measured;
    report.add(
        "nano_prefill_tokens_per_s", rate,
        str_cat("  prefill of ", kPromptTokens, " tokens        ", fixed(rate, 1), " tokens/s"));
  }
  if (!wanted(options, "nano-decode")) return absl::OkStatus();
  for (const int batch : {1, 8, 32}) {
    subject->begin_decode(batch);
    const double rate = best_rates(
                            options.seconds, [&] { return subject->decode_rate(); }, no_bound)
                            .measured;
    report.add(str_cat("nano_decode_batch_", batch, "_tokens_per_s"), rate,
               str_cat("  decode at batch ", batch, batch < 10 ? " " : "", "           ",
                       fixed(rate, 1), " tokens/s"));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace millrace::tests::bench

int main(int argc, char** argv) {
  using namespace millrace;  // NOLINT(build/namespaces): main is not in our namespace
  CLI::App app("Measures the CPU engine against what this machine allows.",
               "millrace-engine-bench");
  tests::bench::Options options;
  app.add_option("--threads", options.threads, "Threads of the engine and of the bounds")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app.add_option("--preset", options.preset_folder,
                 "Folder of the random checkpoint; written when it is not there")
      ->capture_default_str();
  app.add_option("--nano", options.nano_folder, "Folder of the nano model")->capture_default_str();
  app.add_option("--seconds", options.seconds, "Time for every figure")
      ->check(CLI::Range(0.0, 600.0))
      ->capture_default_str();
  app.add_option("--only", options.only, "One part, for a profiler")
      ->check(CLI::IsMember({"prefill", "decode", "nano-prefill", "nano-decode"}));
  const std::map<std::string, tests::bench::ClockKind> clocks = {
      {"wall", tests::bench::ClockKind::kWall}, {"cpu", tests::bench::ClockKind::kCpu}};
  app.add_option("--clock", options.clock,
                 "wall, or cpu: time on a core, for one thread on a busy machine")
      ->transform(CLI::CheckedTransformer(clocks));
  app.add_flag("--json", options.json, "One JSON object instead of a table");
  CLI11_PARSE(app, argc, argv);
  if (options.clock == tests::bench::ClockKind::kCpu && options.threads > 1) {
    std::cerr << "millrace-engine-bench: --clock cpu measures one thread; leave --threads at 1\n";
    return 2;
  }
  tests::bench::Report report;
  absl::Status status = tests::bench::measure_preset(options, report);
  if (status.ok()) status = tests::bench::measure_nano(options, report);
  if (!status.ok()) {
    std::cerr << "millrace-engine-bench: " << message_of(status) << "\n";
    return 1;
  }
  report.print(options.json);
  return 0;
}
