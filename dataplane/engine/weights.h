#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "dataplane/engine/ops.h"
#include "dataplane/model/checkpoint.h"
#include "dataplane/model/engram_hash.h"

namespace millrace::dataplane::engine {

/// The parameters of one hyper-connection site.
struct SiteWeights {
  WeightMatrix fn;  ///< float32, in the mapped file
  std::vector<float> base, scale;
};

/// What only KV sources own.
struct CompressorWeights {
  WeightMatrix wkv;
  WeightMatrix wgate;  ///< empty at ratio 1
  std::vector<float> norm;
  WeightMatrix wk;
  std::vector<float> k_norm;
};

/// What only index sources own.
struct IndexerWeights {
  WeightMatrix wq_b;
  WeightMatrix weights_proj;
};

struct EngramWeights {
  const std::uint8_t* codes = nullptr;   ///< [rows, engram_head_dim] E4M3
  const std::uint8_t* scales = nullptr;  ///< [rows, engram_head_dim / 32] E8M0
  WeightMatrix wkv;
  std::vector<float> q_weight, k_weight;
  model::EngramHash hash;
};

struct LayerWeights {
  SiteWeights attn_site, ffn_site;
  std::vector<float> attn_norm, ffn_norm, q_norm, kv_norm, attn_sink;
  WeightMatrix wq_a, wq_b, wkv, wo_a, wo_b;
  std::optional<CompressorWeights> compressor;
  std::optional<IndexerWeights> indexer;
  std::optional<EngramWeights> engram;
  WeightMatrix gate;
  std::vector<float> gate_bias;
  ExpertWeights shared;
  std::vector<ExpertWeights> experts;
};

/// The backbone as the CPU computes with it: matrices stay in the mapped file as they are stored,
/// vectors are unpacked to float32. Draft and vision tensors are not looked at.
struct ModelWeights {
  const std::uint8_t* embed = nullptr;  ///< [vocab_size, hidden_size] bf16, in the mapped file
  std::vector<LayerWeights> layers;
  std::vector<float> norm;
  WeightMatrix head;
  std::vector<float> rope_main, rope_compress;  ///< frequencies
};

/// Looks at every tensor of the backbone. kDataLoss names one that holds a NaN, an infinity, or a
/// scale of 2^120 or more. The checkpoint must outlive the weights.
absl::StatusOr<ModelWeights> load_weights(const model::Checkpoint& checkpoint);

}  // namespace millrace::dataplane::engine
