#include "tests/sim/experts/expert_load.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <numeric>

#include "common/check.h"

namespace millrace::sim {
namespace {

constexpr int kMaxExpertsPerToken = 16;

}  // namespace

DriftingPopularity::DriftingPopularity(int expert_count, double zipf_exponent,
                                       double correlation_steps, std::uint64_t seed)
    : exponent_(zipf_exponent),
      correlation_steps_(correlation_steps),
      random_(seed),
      place_(static_cast<std::size_t>(expert_count)),
      weights_(place_.size()) {
  for (double& x : place_) x = normal();
  weigh();
}

double DriftingPopularity::normal() {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - random_.uniform()));
  return radius * std::cos(2.0 * std::numbers::pi * random_.uniform());
}

void DriftingPopularity::advance(int steps) {
  const double kept = std::exp(-steps / correlation_steps_);
  const double fresh = std::sqrt(1.0 - kept * kept);
  for (double& x : place_) x = kept * x + fresh * normal();
  weigh();
}

void DriftingPopularity::weigh() {
  const auto experts = static_cast<double>(place_.size());
  for (std::size_t e = 0; e < place_.size(); ++e) {
    const double above = 0.5 * std::erfc(place_[e] / std::numbers::sqrt2);
    weights_[e] = std::pow(experts * above + 0.5, -exponent_);
  }
}

TokenSampler::TokenSampler(int expert_count, int experts_per_token, std::uint64_t seed)
    : experts_per_token_(experts_per_token),
      random_(seed),
      cells_(static_cast<std::size_t>(expert_count)) {
  CHECK(experts_per_token <= kMaxExpertsPerToken && experts_per_token <= expert_count);
}

/// Vose's construction (1991): every cell has its own expert up to a threshold, another beyond.
void TokenSampler::set_weights(const std::vector<double>& weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<double> scaled;
  scaled.reserve(weights.size());
  std::vector<std::uint32_t> small;
  std::vector<std::uint32_t> large;
  for (std::size_t e = 0; e < weights.size(); ++e) {
    scaled.push_back(weights[e] * static_cast<double>(weights.size()) / sum);
    (scaled.back() < 1.0 ? small : large).push_back(static_cast<std::uint32_t>(e));
  }
  while (!small.empty() && !large.empty()) {
    const std::uint32_t low = small.back();
    const std::uint32_t high = large.back();
    small.pop_back();
    cells_[low] = {static_cast<std::uint32_t>(scaled[low] * 0x1p32), low, high};
    scaled[high] -= 1.0 - scaled[low];
    if (scaled[high] < 1.0) {
      large.pop_back();
      small.push_back(high);
    }
  }
  for (const std::uint32_t e : small) cells_[e] = {0, e, e};
  for (const std::uint32_t e : large) cells_[e] = {0, e, e};
}

void TokenSampler::draw(int tokens, std::uint32_t* counts) {
  const std::uint64_t experts = cells_.size();
  std::array<std::uint32_t, kMaxExpertsPerToken> drawn{};
  for (int token = 0; token < tokens; ++token) {
    for (int i = 0; i < experts_per_token_;) {
      // The upper half of the product says which cell, the lower half where in it.
      const std::uint64_t point = (random_.next() >> 32U) * experts;
      const Cell& cell = cells_[point >> 32U];
      const std::uint32_t expert =
          static_cast<std::uint32_t>(point) < cell.threshold ? cell.own : cell.alias;
      bool is_new = true;
      for (int j = 0; j < i; ++j) is_new &= drawn[static_cast<std::size_t>(j)] != expert;
      if (!is_new) continue;
      drawn[static_cast<std::size_t>(i++)] = expert;
      ++counts[expert];
    }
  }
}

}  // namespace millrace::sim
