#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dataplane/engine/layer_runner.h"
#include "dataplane/engine/step_batch.h"
#include "dataplane/engine/swap_in.h"

namespace millrace::dataplane::engine {

/// The forward pass of one step: which rows run through which layers.
///
/// All rows run through the layers below the first decoder layer, and through that layer's producer
/// of global KV. From there on only rows at or above their sequence's decoder floor go on. Because
/// a row sees global entries of earlier positions only, and the decoder's rings hold the rows of
/// earlier steps, a row can run its decoder layers in the step it arrives in: the result equals
/// running the whole tail at the end.
///
/// A layer whose stored KV is still on its way into one of the sequences waits for it.
class Forward {
 public:
  Forward(const model::ModelConfig& config, const ModelWeights& weights,
          std::span<const std::int32_t> engram_token_map, LayerRunner& runner, SwapIns& swap_ins)
      : config_(config),
        weights_(weights),
        token_map_(engram_token_map),
        runner_(runner),
        swap_ins_(swap_ins),
        batch_(config) {}

  /// logits [sum of logits_rows, vocab_size], out.
  void run(std::span<const StepPart> parts, std::vector<float>& logits);

 private:
  void start_layer(int layer, std::span<const StepPart> parts);

  const model::ModelConfig& config_;
  const ModelWeights& weights_;
  std::span<const std::int32_t> token_map_;
  LayerRunner& runner_;
  SwapIns& swap_ins_;
  StepBatch batch_;
  std::vector<std::int64_t> engram_ids_;
};

}  // namespace millrace::dataplane::engine
