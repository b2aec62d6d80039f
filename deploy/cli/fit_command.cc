// `millrace bench fit`.

#include <chrono>
#include <cstdio>
#include <map>
#include <string>
#include <thread>

#include "common/hex.h"
#include "common/mapped_file.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "dataplane/cost/cost_file.h"
#include "dataplane/engine/engine.h"
#include "dataplane/fit/measure.h"
#include "dataplane/fit/plot.h"
#include "dataplane/model/checkpoint.h"
#include "deploy/cli/commands.h"
#include "deploy/cli/text_table.h"

namespace millrace::deploy::cli {
namespace {

namespace cost = dataplane::cost;
namespace fit = dataplane::fit;

double now_ns() {
  return std::chrono::duration<double, std::nano>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// The processor's name as Linux tells it, and how many threads the engine had.
std::string machine_name(int threads) {
  std::string name = "unknown processor";
  if (const auto info = read_file("/proc/cpuinfo"); info.ok()) {
    const std::size_t field = info->find("model name");
    const std::size_t begin = field == info->npos ? info->npos : info->find(": ", field);
    if (begin != info->npos) name = info->substr(begin + 2, info->find('\n', begin) - begin - 2);
  }
  return str_cat(name, ", ", threads, threads == 1 ? " thread" : " threads");
}

std::string percent(double share) { return str_cat(fixed(share * 100, 1), " %"); }

/// Steps of similar size, and by how much the model misses them.
struct Residuals {
  int count = 0;
  double measured_ns = 0;
  double signed_error = 0;  ///< Σ of relative errors
  double absolute_error = 0;

  void add(double measured, double predicted) {
    ++count;
    measured_ns += measured;
    signed_error += predicted / measured - 1;
    absolute_error += std::abs(predicted / measured - 1);
  }
};

/// The largest power of 4 that is not above the value; 0 below 1.
int size_class(double value) {
  int power = 1;
  while (power * 4.0 <= value) power *= 4;
  return value < 1 ? 0 : power;
}

void add_rows(TextTable& table, const std::string& kind,
              const std::map<std::pair<int, int>, Residuals>& groups) {
  for (const auto& [sizes, group] : groups) {
    table.add_row({kind, str_cat(sizes.first, "+"), str_cat(sizes.second, "+"),
                   str_cat(group.count), fixed(group.measured_ns / group.count * 1e-6, 2),
                   percent(group.signed_error / group.count),
                   percent(group.absolute_error / group.count)});
  }
}

void print_residuals(const fit::Measured& measured, const cost::CostFile& file) {
  TextTable table({"steps", "rows", "context", "count", "ms", "bias", "mean error"});
  std::map<std::pair<int, int>, Residuals> prefill;
  for (const fit::MeasuredPrefill& step : measured.prefill) {
    const cost::PrefillSample& s = step.sample;
    prefill[{size_class(static_cast<double>(step.rows)),
             size_class(static_cast<double>(step.cached))}]
        .add(s.ns, cost::predicted_ns(file.prefill, s));
  }
  add_rows(table, "prefill", prefill);
  std::map<std::pair<int, int>, Residuals> decode;
  for (const cost::DecodeSample& s : measured.decode) {
    decode[{size_class(s.batch), size_class(s.kv_tokens)}].add(s.ns,
                                                               cost::predicted_ns(file.decode, s));
  }
  add_rows(table, "decode", decode);
  std::printf("%s\n", table.to_string().c_str());
}

template <typename Fit>
void print_quality(const char* kind, const fit::JudgedFit<Fit>& judged) {
  const cost::FitQuality& quality = judged.fit.quality;
  std::printf("%s: %d steps fitted, %d outliers; %d held out: mean error %s\n", kind, quality.used,
              quality.rejected, judged.held_out, percent(judged.held_out_error).c_str());
  for (const std::string& term : quality.left_out) {
    std::printf("  %s is 0: it would be negative, or these steps do not show it\n", term.c_str());
  }
}

absl::Status fit_costs(const FitOptions& options, const Terminal& terminal) {
  ASSIGN_OR_RETURN(const auto checkpoint, dataplane::model::Checkpoint::open(options.model_dir));
  const int threads = options.threads > 0
                          ? options.threads
                          : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const fit::MeasurePlan plan{.seconds = options.seconds,
                              .max_context = options.max_context,
                              .max_step_rows = options.step_rows,
                              .max_batch = options.max_batch,
                              .seed = options.seed};
  RETURN_IF_ERROR(fit::check(plan));
  // Room for every decoding sequence at its longest, and for the two prompts of a step.
  const int blocks = (plan.max_batch + 2) * (plan.max_context / 128 + 2);
  ASSIGN_OR_RETURN(const auto engine,
                   dataplane::engine::open_cpu_engine(*checkpoint, {},
                                                      {.kv_blocks = blocks,
                                                       .max_sequences = plan.max_batch + 2,
                                                       .max_step_rows = plan.max_step_rows,
                                                       .threads = threads}));
  if (plan.max_context > engine->max_position()) {
    return absl::InvalidArgumentError(str_cat("--max-context ", plan.max_context,
                                              " is beyond the model's ", engine->max_position()));
  }
  ProgressLine line(terminal);
  ASSIGN_OR_RETURN(
      const fit::Measured measured,
      fit::measure_costs(*engine, plan, {.now_ns = now_ns, .progress = [&](double share) {
                                           line.show(str_cat(progress_bar(share, 30),
                                                             " measuring steps"));
                                         }}));
  line.clear();
  ASSIGN_OR_RETURN(const auto prefill, fit::judge_prefill(measured));
  ASSIGN_OR_RETURN(const auto decode, fit::judge_decode(measured));
  const cost::CostFile file{
      .subject = {options.model_id, to_hex(checkpoint->artifact_digest()), "cpu",
                  machine_name(threads)},
      .source = str_cat("measured by millrace bench fit: ", measured.prefill.size(),
                        " prefill and ", measured.decode.size(), " decode steps"),
      .prefill = prefill.fit.model,
      .decode = decode.fit.model,
      .prefill_error = prefill.held_out_error,
      .decode_error = decode.held_out_error};
  print_residuals(measured, file);
  print_quality("prefill", prefill);
  print_quality("decode", decode);
  RETURN_IF_ERROR(write_file_atomically(options.out, cost::to_json_text(file)));
  std::printf("%s written\n", options.out.c_str());
  if (options.plot.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(write_file_atomically(
      options.plot, fit::draw_fit(measured, file.prefill, file.decode,
                                  str_cat(options.model_id, " on ", file.subject.machine))));
  std::printf("%s drawn\n", options.plot.c_str());
  return absl::OkStatus();
}

}  // namespace

int run_bench_fit(const FitOptions& options, const Terminal& terminal) {
  const absl::Status status = fit_costs(options, terminal);
  if (status.ok()) return 0;
  print_error(message_of(status));
  return 1;
}

}  // namespace millrace::deploy::cli
