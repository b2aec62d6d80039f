#include "dataplane/cost/cost_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string_view>
#include <utility>

#include "common/str_cat.h"

namespace millrace::dataplane::cost {
namespace {

/// Beyond it a charge says nothing more, and a few thousand of them still add up in 64 bits.
constexpr double kLargestCharge = 4611686018427387904.0;  // 2^62

absl::Status check_all(std::span<const std::pair<std::string_view, double>> coefficients) {
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
  std::array<std::pair<std::string_view, double>, kCoefficients.size()> named;
  std::transform(kCoefficients.begin(), kCoefficients.end(), named.begin(),
                 [&](const Coefficient& c) { return std::pair(c.name, model.*c.value); });
  return check_all(named);
}

double chunk_cost_ns(const CostModel& model, const Chunk& chunk) {
  if (chunk.rows <= 0) return 0;
  const auto q = static_cast<double>(chunk.rows);
  const auto c = static_cast<double>(chunk.cached);
  const auto t = static_cast<double>(chunk.tail);
  return ((model.quadratic * q + model.cross * c) + model.linear) * q + model.fixed +
         (model.tail_cross * (c + q) + model.tail) * t;
}

std::int64_t quota_ns(const CostModel& model, const Chunk& chunk) {
  if (chunk.rows <= 0) return 0;
  const double cost = std::ceil(chunk_cost_ns(model, chunk));
  return static_cast<std::int64_t>(std::clamp(cost, 1.0, kLargestCharge));
}

std::int64_t largest_chunk(const CostModel& model, std::int64_t most, std::int64_t cached,
                           std::int64_t prompt_tokens, double budget_ns) {
  const auto fits = [&](std::int64_t q) {
    return chunk_cost_ns(model, chunk_at(q, cached, prompt_tokens)) <= budget_ns;
  };
  if (most <= 0 || !fits(1)) return 0;
  if (fits(most)) return most;
  std::int64_t fitting = 1;
  std::int64_t too_many = most;
  const auto judge = [&](std::int64_t q) {
    if (fitting < q && q < too_many) (fits(q) ? fitting : too_many) = q;
  };
  // Where the tail begins, the cost bends: before it the closed form guesses, and in it there are
  // few rows to halve.
  judge(prompt_tokens - kTailRows - cached);
  const double guess =
      solve(model.quadratic, model.cross * static_cast<double>(cached) + model.linear,
            budget_ns - model.fixed);
  const auto near = static_cast<std::int64_t>(std::clamp(guess, 0.0, static_cast<double>(most)));
  // The guess is off by at most one where the model is well scaled, and then nothing is left to
  // halve; where fixed swallows the digits of the rest, halving still finds the last one that fits.
  for (const std::int64_t q : {near, near + 1, near - 1}) judge(q);
  while (too_many - fitting > 1) judge(fitting + (too_many - fitting) / 2);
  return fitting;
}

absl::Status check(const DecodeCostModel& model) {
  const std::array<std::pair<std::string_view, double>, 3> named = {
      {{"fixed", model.fixed},
       {"per_request", model.per_request},
       {"per_kv_token", model.per_kv_token}}};
  return check_all(named);
}

double decode_step_ns(const DecodeCostModel& model, std::int64_t batch, std::int64_t kv_tokens) {
  return model.fixed + model.per_request * static_cast<double>(batch) +
         model.per_kv_token * static_cast<double>(kv_tokens);
}

}  // namespace millrace::dataplane::cost
