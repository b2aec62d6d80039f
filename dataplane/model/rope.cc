#include "dataplane/model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace millrace::dataplane::model {
namespace {

/// Share of the stretched frequency in pair i: 0 below `low`, 1 above `high`.
class YarnRamp {
 public:
  YarnRamp(const ModelConfig& config, double theta) : config_(config), theta_(theta) {
    low_ = std::max(std::floor(pair_of(config.rope_scaling.beta_fast)), 0.0);
    high_ = std::min(std::ceil(pair_of(config.rope_scaling.beta_slow)),
                     static_cast<double>(config.qk_rope_head_dim - 1));
  }

  double at(int pair) const {
    return std::clamp((pair - low_) / std::max(high_ - low_, 1e-3), 0.0, 1.0);
  }

 private:
  /// The (fractional) pair that turns `rotations` times over the original context.
  double pair_of(double rotations) const {
    const double length = config_.rope_scaling.original_max_position_embeddings;
    return config_.qk_rope_head_dim * std::log(length / (2 * std::numbers::pi * rotations)) /
           (2 * std::log(theta_));
  }

  const ModelConfig& config_;
  double theta_;
  double low_;
  double high_;
};

}  // namespace

std::vector<float> rope_frequencies(const ModelConfig& config, RopeKind kind) {
  const double theta = kind == RopeKind::kMain ? config.rope_theta : config.compress_rope_theta;
  const YarnRamp ramp(config, theta);
  std::vector<float> frequencies;
  for (int i = 0; i < config.qk_rope_head_dim / 2; ++i) {
    double frequency = std::pow(theta, -2.0 * i / config.qk_rope_head_dim);
    if (kind == RopeKind::kCompress) {
      frequency =
          frequency * (1 - ramp.at(i)) + frequency / config.rope_scaling.factor * ramp.at(i);
    }
    frequencies.push_back(static_cast<float>(frequency));
  }
  return frequencies;
}

}  // namespace millrace::dataplane::model
