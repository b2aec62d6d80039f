#pragma once

#include <cstdint>
#include <vector>

#include "dataplane/engine/engine.h"
#include "dataplane/engine/ops.h"
#include "dataplane/engine/weights.h"
#include "dataplane/kv/layout.h"
#include "dataplane/kv/ring.h"

namespace millrace::dataplane::engine {

/// State of all sequences that ops read and write; one allocation of each kind, made at the start.
struct KvMemory {
  KvMemory(const model::ModelConfig& config, kv::BlockLayout block_layout, std::byte* pool_base,
           int max_sequences);

  /// Ring of a layer, [max_sequences, ring slots, head_dim]. Latents are kept decoded: a query
  /// reads its whole window.
  float* ring(int layer) { return rings.data() + static_cast<std::size_t>(layer) * ring_stride; }
  const float* ring(int layer) const {
    return rings.data() + static_cast<std::size_t>(layer) * ring_stride;
  }
  /// Carry of a KV source with ratio r > 1, [max_sequences, r − 1, 2, head_dim].
  std::vector<float>& carry(int layer) { return carries[static_cast<std::size_t>(layer)]; }
  const std::vector<float>& carry(int layer) const {
    return carries[static_cast<std::size_t>(layer)];
  }

  /// Windows put aside of an encoder layer, [max_sequences, window, head_dim].
  float* kept(int layer) {
    return kept_windows.data() + static_cast<std::size_t>(layer) * kept_stride;
  }
  const float* kept(int layer) const {
    return kept_windows.data() + static_cast<std::size_t>(layer) * kept_stride;
  }

  kv::BlockLayout layout;
  KvPool pool;
  kv::RingGeometry geometry;
  std::size_t ring_stride = 0;  ///< floats of one layer
  std::size_t kept_stride = 0;  ///< likewise
  std::vector<float> rings;
  std::vector<float> kept_windows;
  std::vector<std::vector<float>> carries;  ///< by layer; empty where there is none
};

/// Coefficients of one hyper-connection site.
struct SiteMix {
  std::vector<float> a, p, c;
};

/// What one step computes, row by row; each member is the output of the method named behind it.
/// Sized once for the largest step.
struct Activations {
  Activations(const model::ModelConfig& config, int max_rows);

  std::vector<float> stream, mix;  // [rows, n, hidden], [rows, n]: what goes from layer to layer
  std::vector<float> engram_memory, engram_kv;             // engram
  std::vector<float> collapsed, x, x_quantized;            // site_input
  SiteMix attn, ffn;                                       // site_mix
  std::vector<float> compressor_values, compressor_gates;  // produce_entries
  std::vector<float> latents, index_keys;                  // produce_entries, by entry
  std::vector<float> qr, qr_quantized, q, k;               // queries
  std::vector<float> index_q, index_weights;               // select
  std::vector<std::int32_t> selected, selected_count, candidates, candidate_count;  // select
  std::vector<float> o, low, y;                    // attend; y also experts
  std::vector<float> gate_logits, expert_weights;  // route
  std::vector<std::int32_t> expert_ids;            // route
  std::vector<float> shared_g, shared_u, shared;   // experts
  std::vector<float> rope_cosine[2], rope_sine[2], entry_cosine, entry_sine;
};

enum class Site { kAttention, kFeedForward };

/// The pieces of one layer, over the rows of a step (model specification, section 2). Each method
/// reads and writes Activations, so that a caller may put other values in between: that is how a
/// piece is compared with the reference on its inputs. run() is the order in which a layer uses
/// them.
class LayerRunner {
 public:
  /// Everything passed in must outlive the runner.
  LayerRunner(const model::ModelConfig& config, const ModelWeights& weights, Ops& ops,
              Stream& stream, KvMemory& memory, Switch rounding, int max_rows);

  Activations& activations() { return act_; }

  /// Starts a half of the step: the rows that the methods below work on. `rows` must stay valid.
  void begin(const StepRows& rows);
  /// Embeds tokens [rows] into all copies of the stream, with the initial mix.
  void embed(const std::int32_t* tokens);
  /// Adds the n-gram memory; ids [rows, columns] are rows of this layer's table.
  void engram(int layer, const std::int64_t* ids);
  /// Collapses the stream with the mix that the site uses and normalises it: x.
  void site_input(int layer, Site site);
  /// The mix computed at a site, from the stream as it enters.
  void site_mix(int layer, Site site);
  /// Writes global entries and index keys of a KV source, from x.
  void produce_entries(int layer, const StepEntries& entries);
  /// Queries and window latents, from x.
  void queries(int layer);
  /// The entries that this layer and those sharing its selection attend to; nothing unless it is an
  /// index source. From qr and x.
  void select(int layer);
  /// Attention and output projection, from q, k and the selection: y. Stores the window latents.
  void attend(int layer);
  /// Experts of every row and their weights, from x.
  void route(int layer);
  /// Routed and shared experts, from x and the routing: y.
  void experts(int layer);
  /// Writes y into the stream with the site's own mix.
  void expand(Site site);

  /// Both sites of a layer, from the attention site's x on; its entries are already written.
  void run(int layer);

  /// Drops all rows but these (ascending) from stream, mix and x, then begins with `rows`.
  void keep_rows(const std::int32_t* index, const StepRows& rows);
  /// Logits [count, vocab_size] of rows index [count], after the last layer.
  void logits(const std::int32_t* index, int count, float* out);

 private:
  Rounding rounding() const { return rounding_; }
  bool quantizes() const { return rounding_ == Rounding::kBf16; }
  void norm(const std::vector<float>& x, const std::vector<float>& weight, int rows, int width,
            std::vector<float>& out);
  void linear(const WeightMatrix& layer, const float* x, int rows, Rounding rounding,
              std::vector<float>& out);
  /// x rounded to Q8 when the switch is on; returns what the product reads.
  const float* quantized(const std::vector<float>& x, int rows, int width, std::vector<float>& out);
  void rotate(int layer, RopeDirection direction, int heads, int width, std::vector<float>& x);
  std::size_t rope_of(int layer) const { return config_.ratio(layer) > 0 ? 1 : 0; }

  const model::ModelConfig& config_;
  const ModelWeights& weights_;
  Ops& ops_;
  Stream& stream_;
  KvMemory& memory_;
  const Rounding rounding_;
  Activations act_;
  StepRows rows_;
};

}  // namespace millrace::dataplane::engine
