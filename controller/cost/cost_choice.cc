#include "controller/cost/cost_choice.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

namespace millrace::controller::cost {
namespace {

using dataplane::cost::CostModel;

/// The rows of a prompt behind cached ones, all in one chunk.
struct Shape {
  std::int64_t rows = 0;
  std::int64_t cached = 0;
};

constexpr Shape kReference = {4096, 8192};
constexpr Shape kCompared[] = {{128, 0}, {2048, 0}, {4096, 8192}, {2048, 131072}};
constexpr double kSmallestChange = 0.05;

double predicted_ns(const CostModel& cost, const Shape& shape) {
  return dataplane::cost::chunk_cost_ns(
      cost, dataplane::cost::chunk_at(shape.rows, shape.cached, shape.cached + shape.rows));
}

}  // namespace

std::optional<std::size_t> typical_cost(std::span<const CostModel> costs) {
  if (costs.empty()) return std::nullopt;
  std::vector<double> times;
  times.reserve(costs.size());
  for (const CostModel& cost : costs) times.push_back(predicted_ns(cost, kReference));
  std::vector<std::size_t> order(costs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return times[a] < times[b]; });
  return order[(order.size() - 1) / 2];
}

bool is_worth_publishing(const CostModel& published, const CostModel& next) {
  return std::any_of(std::begin(kCompared), std::end(kCompared), [&](const Shape& shape) {
    const double before = predicted_ns(published, shape);
    return std::abs(predicted_ns(next, shape) - before) > kSmallestChange * before;
  });
}

}  // namespace millrace::controller::cost
