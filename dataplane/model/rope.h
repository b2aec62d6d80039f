#pragma once

#include <vector>

#include "dataplane/model/config.h"

namespace millrace::dataplane::model {

/// The two frequency tables of the model, chosen per layer.
enum class RopeKind {
  kMain,      ///< layers without global KV, draft layers: rope_theta
  kCompress,  ///< layers that read global KV: compress_rope_theta, stretched by YaRN
};

/// Radians per position of each rotated pair, [qk_rope_head_dim / 2]; computed in double precision
/// and rounded once. Source: model specification, section 1.2.
std::vector<float> rope_frequencies(const ModelConfig& config, RopeKind kind);

}  // namespace millrace::dataplane::model
