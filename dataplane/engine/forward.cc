#include "dataplane/engine/forward.h"

namespace millrace::dataplane::engine {

void Forward::run(std::span<const StepPart> parts, std::vector<float>& logits) {
  batch_.build(parts);
  runner_.begin(batch_.encoder.view());
  runner_.embed(batch_.tokens.data());
  const int first_decoder_layer = config_.first_decoder_layer();
  for (int layer = 0; layer < config_.num_hidden_layers; ++layer) {
    start_layer(layer, parts);
    if (layer == first_decoder_layer) {
      if (batch_.decoder_index.empty()) break;
      runner_.keep_rows(batch_.decoder_index.data(), batch_.decoder.view());
    }
    runner_.run(layer);
  }
  const std::size_t count = batch_.logits_index.size();
  logits.resize(count * static_cast<std::size_t>(config_.vocab_size));
  if (count > 0) {
    runner_.logits(batch_.logits_index.data(), static_cast<int>(count), logits.data());
  }
}

/// What every row needs of a layer, whether or not it goes on through it.
void Forward::start_layer(int layer, std::span<const StepPart> parts) {
  const LayerWeights& weights = weights_.layers[static_cast<std::size_t>(layer)];
  if (weights.engram) {
    batch_.engram_rows(parts, weights.engram->hash, token_map_, engram_ids_);
    runner_.engram(layer, engram_ids_.data());
  }
  runner_.site_input(layer, Site::kAttention);
  if (weights.compressor) {
    for (const StepPart& part : parts) swap_ins_.wait(part.sequence->slot, layer);
    runner_.produce_entries(layer, batch_.entries.at(config_.ratio(layer)).view());
  }
}

}  // namespace millrace::dataplane::engine
