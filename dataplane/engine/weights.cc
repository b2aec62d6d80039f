#include "dataplane/engine/weights.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>

#include "common/check.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "dataplane/model/number_formats.h"
#include "dataplane/model/rope.h"

namespace millrace::dataplane::engine {
namespace {

using model::DataType;
using model::TensorView;

std::size_t element_count(const TensorView& tensor) {
  return tensor.bytes.size() / static_cast<std::size_t>(model::element_bytes(tensor.type));
}

std::vector<float> unpack_plain(const TensorView& tensor) {
  std::vector<float> values(element_count(tensor));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (tensor.type == DataType::kF32) {
      std::memcpy(&values[i], tensor.bytes.data() + i * sizeof(float), sizeof(float));
    } else {
      std::uint16_t bits;
      std::memcpy(&bits, tensor.bytes.data() + i * sizeof bits, sizeof bits);
      values[i] = model::decode_bf16(bits);
    }
  }
  return values;
}

/// Whether any word, read at any alignment, has all bits of the mask.
template <typename Word>
bool any_has(std::span<const std::uint8_t> bytes, Word mask) {
  bool found = false;
  for (std::size_t i = 0; i + sizeof(Word) <= bytes.size(); i += sizeof(Word)) {
    Word word;
    std::memcpy(&word, bytes.data() + i, sizeof word);
    found |= (word & mask) == mask;
  }
  return found;
}

/// The kernels bring 2^8 from the codes to the scale; the sum of exponents has to stay finite.
bool has_huge_scale(std::span<const std::uint8_t> scales) {
  constexpr std::uint8_t kFirstRefused = 127 + 120;
  return std::any_of(scales.begin(), scales.end(),
                     [](std::uint8_t scale) { return scale >= kFirstRefused; });
}

bool has_non_finite(const TensorView& tensor) {
  switch (tensor.type) {
    case DataType::kF32:
      return any_has<std::uint32_t>(tensor.bytes, 0x7F800000u);
    case DataType::kBF16:
      return any_has<std::uint16_t>(tensor.bytes, 0x7F80);
    case DataType::kF8E4M3:
      return any_has<std::uint8_t>(tensor.bytes, 0x7F);
    case DataType::kF8E8M0:
      return has_huge_scale(tensor.bytes);
    case DataType::kI8:
      return false;  // every code is a number
  }
  CHECK(false, "not a DataType");
}

WeightFormat format_of(DataType type) {
  switch (type) {
    case DataType::kF32:
      return WeightFormat::kFloat32;
    case DataType::kBF16:
      return WeightFormat::kBf16;
    case DataType::kF8E4M3:
      return WeightFormat::kFp8;
    case DataType::kI8:
      return WeightFormat::kFp4;
    case DataType::kF8E8M0:
      break;
  }
  CHECK(false, "scales are no matrix");
}

/// Reads tensors under a name prefix and remembers the first that holds what it must not.
class Reader {
 public:
  Reader(const model::Checkpoint& checkpoint, std::string prefix)
      : checkpoint_(checkpoint), prefix_(std::move(prefix)) {}

  const TensorView& view(std::string_view name) const {
    return checkpoint_.tensor(str_cat(prefix_, name));
  }

  std::vector<float> vector(std::string_view name) { return unpack_plain(checked(name)); }

  /// A matrix in whatever format it is stored.
  WeightMatrix matrix(std::string_view name) {
    const TensorView& tensor = checked(name);
    WeightMatrix matrix{.format = format_of(tensor.type),
                        .outputs = static_cast<int>(tensor.shape[0]),
                        .inputs = static_cast<int>(tensor.shape[1]),
                        .codes = tensor.bytes.data()};
    if (matrix.format == WeightFormat::kFp4) matrix.inputs *= 2;
    return matrix;
  }

  /// A linear layer, with its scales if its format has them.
  WeightMatrix linear(std::string_view name) {
    WeightMatrix weight = matrix(str_cat(name, ".weight"));
    if (weight.format == WeightFormat::kFp8 || weight.format == WeightFormat::kFp4) {
      weight.scales = checked(str_cat(name, ".scale")).bytes.data();
    }
    return weight;
  }

  const absl::Status& status() const { return status_; }

 private:
  const TensorView& checked(std::string_view name) {
    const TensorView& tensor = view(name);
    if (status_.ok() && has_non_finite(tensor)) {
      status_ = absl::DataLossError(str_cat(
          "tensor ", prefix_, name, " holds ",
          tensor.type == DataType::kF8E8M0 ? "a scale of 2^120 or more" : "a NaN or an infinity"));
    }
    return tensor;
  }

  const model::Checkpoint& checkpoint_;
  std::string prefix_;
  absl::Status status_;
};

SiteWeights load_site(Reader& r, std::string_view site) {
  return {.fn = r.matrix(str_cat("hc_", site, "_fn")),
          .base = r.vector(str_cat("hc_", site, "_base")),
          .scale = r.vector(str_cat("hc_", site, "_scale"))};
}

ExpertWeights load_expert(Reader& r, std::string_view name) {
  return {.w1 = r.linear(str_cat(name, ".w1")),
          .w2 = r.linear(str_cat(name, ".w2")),
          .w3 = r.linear(str_cat(name, ".w3"))};
}

void load_attention(Reader& r, const model::ModelConfig& config, int layer, LayerWeights& w) {
  w.attn_norm = r.vector("attn_norm.weight");
  w.q_norm = r.vector("attn.q_norm.weight");
  w.kv_norm = r.vector("attn.kv_norm.weight");
  w.attn_sink = r.vector("attn.attn_sink");
  w.wq_a = r.linear("attn.wq_a");
  w.wq_b = r.linear("attn.wq_b");
  w.wkv = r.linear("attn.wkv");
  w.wo_a = r.linear("attn.wo_a");
  w.wo_b = r.linear("attn.wo_b");
  if (config.is_kv_source(layer)) {
    CompressorWeights& c = w.compressor.emplace();
    c.wkv = r.linear("attn.compressor.wkv");
    if (config.ratio(layer) > 1) c.wgate = r.linear("attn.compressor.wgate");
    c.norm = r.vector("attn.compressor.norm.weight");
    c.wk = r.linear("attn.indexer.wk");
    c.k_norm = r.vector("attn.indexer.k_norm.weight");
  }
  if (config.is_index_source(layer)) {
    w.indexer = {.wq_b = r.linear("attn.indexer.wq_b"),
                 .weights_proj = r.linear("attn.indexer.weights_proj")};
  }
}

void load_experts(Reader& r, const model::ModelConfig& config, LayerWeights& w) {
  w.ffn_norm = r.vector("ffn_norm.weight");
  w.gate = r.linear("ffn.gate");
  w.gate_bias = r.vector("ffn.gate.bias");
  w.shared = load_expert(r, "ffn.shared_experts");
  for (int e = 0; e < config.n_routed_experts; ++e) {
    w.experts.push_back(load_expert(r, str_cat("ffn.experts.", e)));
  }
}

absl::StatusOr<LayerWeights> load_layer(const model::Checkpoint& checkpoint, int layer) {
  const model::ModelConfig& config = checkpoint.config();
  Reader r(checkpoint, str_cat("layers.", layer, "."));
  LayerWeights w;
  w.attn_site = load_site(r, "attn");
  w.ffn_site = load_site(r, "ffn");
  load_attention(r, config, layer, w);
  load_experts(r, config, w);
  if (config.engram_index(layer) >= 0) {
    w.engram.emplace(EngramWeights{.codes = r.view("engram.embed.weight").bytes.data(),
                                   .scales = r.view("engram.embed.scale").bytes.data(),
                                   .wkv = r.linear("engram.wkv"),
                                   .q_weight = r.vector("engram.q_weight"),
                                   .k_weight = r.vector("engram.k_weight"),
                                   .hash = model::EngramHash(config, layer)});
  }
  RETURN_IF_ERROR(r.status());
  return w;
}

}  // namespace

absl::StatusOr<ModelWeights> load_weights(const model::Checkpoint& checkpoint) {
  const model::ModelConfig& config = checkpoint.config();
  ModelWeights weights;
  Reader r(checkpoint, "");
  weights.embed = r.view("embed.weight").bytes.data();
  weights.norm = r.vector("norm.weight");
  weights.head = r.linear("head");
  RETURN_IF_ERROR(r.status());
  weights.rope_main = model::rope_frequencies(config, model::RopeKind::kMain);
  weights.rope_compress = model::rope_frequencies(config, model::RopeKind::kCompress);
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    ASSIGN_OR_RETURN(LayerWeights layer_weights, load_layer(checkpoint, layer));
    weights.layers.push_back(std::move(layer_weights));
  }
  return weights;
}

}  // namespace millrace::dataplane::engine
