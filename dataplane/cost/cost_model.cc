#include "dataplane/cost/cost_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "common/str_cat.h"

namespace millrace::dataplane::cost {
namespace {

/// Beyond it a charge says nothing more, and a few thousand of them still add up in 64 bits.
constexpr double kLargestCharge = 4611686018427387904.0;  // 2^62

template <std::size_t n>
absl::Status check_all(const std::array<std::pair<std::string_view, double>, n>& coefficients) {
  bool is_zero = true;
  for (const auto& [name, value] : coefficients) {
    if (!std::isfinite(value) || value < 0) {
      return absl::InvalidArgumentError(str_cat("cost model: ", name, " = ", value,
                                                "; it must be a finite number of at least 0"));
    }
    is_zero = is_zero && value == 0;
  }
  if (is_zero) return absl::InvalidArgumentError("cost model: every coefficient is 0");
  return absl::OkStatus();
}

/// The root of quadratic q² + k q = budget without the cancellation of the schoolbook form, so that
/// quadratic may go to 0.
double solve(double quadratic, double k, double budget) {
  const double denominator = k + std::sqrt(k * k + 4 * quadratic * budget);
  return denominator > 0 ? 2 * budget / denominator : HUGE_VAL;
}

}  // namespace

absl::Status check(const CostModel& model) {
  return check_all<4>({{{"quadratic", model.quadratic},
                        {"cross", model.cross},
                        {"linear", model.linear},
                        {"fixed", model.fixed}}});
}

double chunk_cost_ns(const CostModel& model, std::int64_t rows, std::int64_t cached) {
  if (rows <= 0) return 0;
  const double q = static_cast<double>(rows);
  const double c = static_cast<double>(cached);
  return ((model.quadratic * q + model.cross * c) + model.linear) * q + model.fixed;
}

std::int64_t quota_ns(const CostModel& model, std::int64_t rows, std::int64_t cached) {
  if (rows <= 0) return 0;
  const double cost = std::ceil(chunk_cost_ns(model, rows, cached));
  return static_cast<std::int64_t>(std::clamp(cost, 1.0, kLargestCharge));
}

std::int64_t largest_chunk(const CostModel& model, std::int64_t rows, std::int64_t cached,
                           double budget_ns) {
  const auto fits = [&](std::int64_t q) { return chunk_cost_ns(model, q, cached) <= budget_ns; };
  if (rows <= 0 || !fits(1)) return 0;
  if (fits(rows)) return rows;
  const double guess =
      solve(model.quadratic, model.cross * static_cast<double>(cached) + model.linear,
            budget_ns - model.fixed);
  const auto near = static_cast<std::int64_t>(std::clamp(guess, 0.0, static_cast<double>(rows)));
  std::int64_t fitting = 1;
  std::int64_t too_many = rows;
  const auto judge = [&](std::int64_t q) { (fits(q) ? fitting : too_many) = q; };
  // The guess is off by at most one where the model is well scaled, and then nothing is left to
  // halve; where fixed swallows the digits of the rest, halving still finds the last one that fits.
  for (const std::int64_t q : {near, near + 1, near - 1}) {
    if (fitting < q && q < too_many) judge(q);
  }
  while (too_many - fitting > 1) judge(fitting + (too_many - fitting) / 2);
  return fitting;
}

absl::Status check(const DecodeCostModel& model) {
  return check_all<3>({{{"fixed", model.fixed},
                        {"per_request", model.per_request},
                        {"per_kv_token", model.per_kv_token}}});
}

double decode_step_ns(const DecodeCostModel& model, std::int64_t batch, std::int64_t kv_tokens) {
  return model.fixed + model.per_request * static_cast<double>(batch) +
         model.per_kv_token * static_cast<double>(kv_tokens);
}

}  // namespace millrace::dataplane::cost
