#include "tests/sim/cluster/workload.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "common/status_macros.h"
#include "common/str_cat.h"
#include "tests/sim/cluster/trace_file.h"

namespace millrace::sim {
namespace {

constexpr std::size_t kMostRequests = std::size_t{1} << 30;

/// Numbers that do not depend on the standard library in use, unlike its distributions.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : engine_(seed) {}

  double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  double exponential(double rate) { return -std::log1p(-uniform()) / rate; }
  double normal() {
    const double radius = std::sqrt(-2 * std::log1p(-uniform()));
    return radius * std::cos(2 * 3.14159265358979323846 * uniform());
  }

 private:
  std::mt19937_64 engine_;
};

SimTime to_sim(double seconds) { return static_cast<SimTime>(seconds * 1e9); }

/// A request of a copy of the trace, before it is known which number it gets.
struct Placed {
  SimTime at = 0;
  std::int32_t copy = 0;
  std::int32_t row = 0;
};

std::vector<Placed> place_copies(const Scenario& scenario, const std::vector<TraceRow>& rows,
                                 Draw& draw) {
  const ArrivalSettings& settings = scenario.arrivals;
  const SimTime horizon = to_sim(scenario.horizon_s);
  const double tick_ns = settings.tick_s * 1e9;
  const double span_ns =
      std::max((static_cast<double>(rows.back().at) + tick_ns) / settings.speed, 1.0);
  std::vector<Placed> placed;
  for (std::int32_t copy = 0; copy < settings.copies; ++copy) {
    // Shifted round the circle of the trace: the first copy begins where the trace does.
    const double shift = span_ns * copy / static_cast<double>(settings.copies);
    for (std::size_t row = 0; row < rows.size(); ++row) {
      const double stamp = static_cast<double>(rows[row].at) + tick_ns * draw.uniform();
      double at = stamp / settings.speed + shift;
      if (at >= span_ns && settings.copies > 1) at -= span_ns;
      if (at >= static_cast<double>(horizon)) continue;
      placed.push_back({static_cast<SimTime>(at), copy, static_cast<std::int32_t>(row)});
    }
  }
  std::sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) {
    return std::tie(a.at, a.copy, a.row) < std::tie(b.at, b.copy, b.row);
  });
  return placed;
}

absl::StatusOr<std::vector<Arrival>> from_trace(const Scenario& scenario, Draw& draw) {
  const ArrivalSettings& settings = scenario.arrivals;
  ASSIGN_OR_RETURN(const std::vector<TraceRow> rows,
                   read_trace_rows(settings.trace, settings.rows, settings.cache_blocks));
  const std::vector<Placed> placed = place_copies(scenario, rows, draw);
  std::vector<std::int32_t> number_of(rows.size() * static_cast<std::size_t>(settings.copies), -1);
  std::vector<Arrival> arrivals;
  arrivals.reserve(placed.size());
  for (const Placed& p : placed) {
    const TraceRow& row = rows[static_cast<std::size_t>(p.row)];
    const std::size_t copy_begin = static_cast<std::size_t>(p.copy) * rows.size();
    Arrival arrival{.at = p.at,
                    .input_tokens = row.input_tokens,
                    .output_tokens = row.output_tokens,
                    .cached_tokens = row.cached_tokens};
    if (row.parent >= 0) {
      arrival.parent = number_of[copy_begin + static_cast<std::size_t>(row.parent)];
    }
    number_of[copy_begin + static_cast<std::size_t>(p.row)] =
        static_cast<std::int32_t>(arrivals.size());
    arrivals.push_back(arrival);
  }
  return arrivals;
}

std::int32_t draw_length(double median, double sigma, std::int64_t least, std::int64_t most,
                         Draw& draw) {
  const double length = median * std::exp(sigma * draw.normal());
  return static_cast<std::int32_t>(
      std::clamp(length, static_cast<double>(least), static_cast<double>(most)));
}

Arrival draw_request(const RequestClass& c, SimTime at, Draw& draw) {
  Arrival arrival{.at = at};
  arrival.input_tokens = draw_length(c.input_median, c.input_sigma, c.input_min, c.input_max, draw);
  arrival.output_tokens = draw_length(c.output_median, c.output_sigma, 1, c.output_max, draw);
  const double stored = c.cached_share * arrival.input_tokens;
  arrival.cached_tokens = cached_tokens_of(static_cast<std::int64_t>(stored), arrival.input_tokens);
  return arrival;
}

std::vector<Arrival> generate(const Scenario& scenario, Draw& draw) {
  const ArrivalSettings& settings = scenario.arrivals;
  const RequestClass& last = settings.classes.back();
  std::vector<Arrival> arrivals;
  for (std::int64_t i = 0; i < settings.at_start; ++i) {
    arrivals.push_back(draw_request(last, 0, draw));
  }
  double shares = 0;
  for (const RequestClass& c : settings.classes) shares += c.share;
  double at_s = settings.rate > 0 ? draw.exponential(settings.rate) : scenario.horizon_s;
  while (at_s < scenario.horizon_s && arrivals.size() < kMostRequests) {
    double pick = draw.uniform() * shares;
    std::size_t chosen = 0;
    while (chosen + 1 < settings.classes.size() && pick >= settings.classes[chosen].share) {
      pick -= settings.classes[chosen++].share;
    }
    arrivals.push_back(draw_request(settings.classes[chosen], to_sim(at_s), draw));
    at_s += draw.exponential(settings.rate);
  }
  if (settings.burst_every_s > 0) {
    for (double burst_s = settings.burst_every_s; burst_s < scenario.horizon_s;
         burst_s += settings.burst_every_s) {
      for (std::int64_t i = 0; i < settings.burst_requests; ++i) {
        arrivals.push_back(draw_request(last, to_sim(burst_s), draw));
      }
    }
    std::stable_sort(arrivals.begin(), arrivals.end(),
                     [](const Arrival& a, const Arrival& b) { return a.at < b.at; });
  }
  return arrivals;
}

}  // namespace

absl::StatusOr<std::vector<Arrival>> make_workload(const Scenario& scenario, std::uint64_t seed) {
  Draw draw(seed);
  std::vector<Arrival> arrivals;
  if (scenario.arrivals.trace.empty()) {
    arrivals = generate(scenario, draw);
  } else {
    ASSIGN_OR_RETURN(arrivals, from_trace(scenario, draw));
  }
  if (arrivals.empty()) {
    return absl::InvalidArgumentError(
        str_cat("scenario ", scenario.name, ": no request arrives within the horizon"));
  }
  if (arrivals.size() >= kMostRequests) {
    return absl::InvalidArgumentError(
        str_cat("scenario ", scenario.name, ": more than 2^30 requests"));
  }
  return arrivals;
}

}  // namespace millrace::sim
