#pragma once

#include "dataplane/model/config.h"

namespace millrace::tests::bench {

/// What the matrices of a model cost, counted from its inventory. Attention scores,
/// hyper-connection arithmetic and norms are left out: time spent there counts against the engine.
struct ModelWork {
  double parameters = 0;     ///< of the backbone, tables included
  double encoder_flops = 0;  ///< of one row in the layers that every row runs through
  double decoder_flops = 0;  ///< of one row in the layers of the prompt's tail
  double head_flops = 0;     ///< of the logits of one row
  double active_bytes = 0;   ///< weights as stored that one decoded token reads
};

ModelWork count_work(const dataplane::model::ModelConfig& config);

/// Float32 operations of a whole prompt whose last row gives logits.
double prefill_flops(const dataplane::model::ModelConfig& config, const ModelWork& work,
                     int prompt_tokens);

/// The configuration of the `cpu` preset: every layer role of the architecture, about 200 million
/// parameters, matrices large enough that arithmetic and memory decide and not the overhead of
/// small operations.
const char* cpu_preset_config();

}  // namespace millrace::tests::bench
