#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "dataplane/engine/ops.h"
#include "dataplane/model/checkpoint.h"
#include "dataplane/model/engram_hash.h"

namespace millrace::dataplane::engine {

/// A linear layer, unpacked to float32: y = x · weightᵀ, [outputs, inputs].
struct Linear {
  int outputs = 0;
  int inputs = 0;
  std::vector<float> weight;
};

/// The parameters of one hyper-connection site.
struct SiteWeights {
  std::vector<float> fn, base, scale;
};

struct Expert {
  Linear w1, w2, w3;
};

/// What only KV sources own.
struct CompressorWeights {
  Linear wkv;
  Linear wgate;  ///< empty at ratio 1
  std::vector<float> norm;
  Linear wk;
  std::vector<float> k_norm;
};

/// What only index sources own.
struct IndexerWeights {
  Linear wq_b;
  Linear weights_proj;
};

/// The lookup table stays in the mapped file.
struct EngramWeights {
  const std::uint8_t* codes = nullptr;   ///< [rows, engram_head_dim] E4M3
  const std::uint8_t* scales = nullptr;  ///< [rows, engram_head_dim / 32] E8M0
  Linear wkv;
  std::vector<float> q_weight, k_weight;
  model::EngramHash hash;
};

struct LayerWeights {
  SiteWeights attn_site, ffn_site;
  std::vector<float> attn_norm, ffn_norm, q_norm, kv_norm, attn_sink;
  Linear wq_a, wq_b, wkv, wo_a, wo_b;
  std::optional<CompressorWeights> compressor;
  std::optional<IndexerWeights> indexer;
  std::optional<EngramWeights> engram;
  Linear gate;
  std::vector<float> gate_bias;
  Expert shared;
  std::vector<Expert> experts;
  std::vector<ExpertWeights> expert_table;  ///< pointers into `experts`
};

/// The backbone in the form that the CPU computes with. Draft and vision tensors are not loaded.
struct ModelWeights {
  const std::uint8_t* embed = nullptr;  ///< [vocab_size, hidden_size] bf16, in the mapped file
  std::vector<LayerWeights> layers;
  std::vector<float> norm;
  Linear head;
  std::vector<float> rope_main, rope_compress;  ///< frequencies
};

/// Unpacks every tensor of the backbone. kDataLoss names a tensor that holds a NaN or an infinity.
absl::StatusOr<ModelWeights> load_weights(const model::Checkpoint& checkpoint);

}  // namespace millrace::dataplane::engine
