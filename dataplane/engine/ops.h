#pragma once

#include <cstddef>
#include <cstdint>

#include "dataplane/kv/layout.h"
#include "dataplane/kv/ring.h"

namespace millrace::dataplane::engine {

/// Where ops are queued: a CUDA stream, or, on the CPU, the calling thread itself.
class Stream {
 public:
  virtual ~Stream() = default;
  /// Returns when everything queued so far is done. Ops never call it.
  virtual void synchronize() = 0;
  /// At least `bytes` of scratch on the stream's device, 64-byte aligned. Its content is lost at
  /// the next call; it grows to the largest request and stays.
  virtual std::byte* workspace(std::size_t bytes) = 0;
};

/// Whether a result is rounded to bfloat16 (to nearest, ties to even) when it is stored. The
/// storage is float32 either way.
enum class Rounding { kBf16, kNone };

/// Rows of one step: consecutive tokens of several sequences. All arrays are on the stream's
/// device; ops read boundaries, lengths and block tables from them, never from host values, so that
/// a recorded graph can be replayed.
struct StepRows {
  int rows = 0;
  int sequences = 0;
  const std::int32_t* position = nullptr;      ///< [rows] absolute position
  const std::int32_t* sequence = nullptr;      ///< [rows] index into the arrays below
  const std::int32_t* first_row = nullptr;     ///< [sequences + 1] rows of s: first_row[s] …
  const std::int32_t* slot = nullptr;          ///< [sequences] place in rings and carries
  const std::int32_t* window_floor = nullptr;  ///< [sequences] lowest position with a window latent
  const std::int32_t* keep_anchor = nullptr;   ///< [sequences] see KeepWindowArgs; 0: nothing
  const std::int32_t* keep_from = nullptr;     ///< [sequences]
  const std::int32_t* block_table =
      nullptr;  ///< [sequences, table_stride] pool block of every block
  int table_stride = 0;
};

/// Groups of `ratio` tokens whose last token is among the rows and which are to be written.
struct StepEntries {
  int entries = 0;
  const std::int32_t* last_row = nullptr;  ///< [entries] row of the group's last token
  const std::int32_t* index = nullptr;  ///< [entries] entry number j; its tokens are j·ratio …
};

/// Global KV of all sequences.
struct KvPool {
  std::byte* base = nullptr;
  std::size_t block_bytes = 0;
  kv::Encoding encoding = kv::Encoding::kQuantized;
};

struct EmbedArgs {
  const std::uint8_t* table = nullptr;   ///< [vocabulary, width] bf16, little endian, any alignment
  const std::int32_t* tokens = nullptr;  ///< [rows]
  int rows = 0, copies = 0, width = 0;
  float* stream = nullptr;  ///< [rows, copies, width], out: the embedding in every copy
  float* mix = nullptr;     ///< [rows, copies], out: (1, 0, …)
};

struct EngramGatherArgs {
  const std::uint8_t* codes = nullptr;   ///< [table rows, width] E4M3
  const std::uint8_t* scales = nullptr;  ///< [table rows, width / 32] E8M0
  const std::int64_t* ids = nullptr;     ///< [rows, columns]
  int rows = 0, columns = 0, width = 0;
  float* out = nullptr;  ///< [rows, columns, width]
};

struct EngramApplyArgs {
  int rows = 0, copies = 0, width = 0;
  const float* kv = nullptr;  ///< [rows, (copies + 1)·width]: keys of every copy, then the value
  const float* q_weight = nullptr;  ///< [copies, width]
  const float* k_weight = nullptr;  ///< [copies, width]
  float eps = 0;
  Rounding rounding = Rounding::kNone;
  float* stream = nullptr;  ///< [rows, copies, width], in and out
};

struct RmsNormArgs {
  int rows = 0, width = 0;
  const float* x = nullptr;       ///< [rows, width]
  const float* weight = nullptr;  ///< [width]
  float eps = 0;
  Rounding rounding = Rounding::kNone;
  float* out = nullptr;  ///< [rows, width], may be x
};

/// How a weight matrix is stored (model specification, section 1.3).
enum class WeightFormat { kFloat32, kBf16, kFp8, kFp4 };

/// A weight matrix [outputs, inputs], row-major, in the bytes of its checkpoint, at any alignment.
/// Ops decode what they need when they need it; a decoded value is an exact float32. Scales are
/// below 2^120.
struct WeightMatrix {
  WeightFormat format = WeightFormat::kFloat32;
  int outputs = 0, inputs = 0;
  const std::uint8_t* codes = nullptr;
  /// FP8: [outputs / 32, inputs / 32] rounded up; FP4: [outputs, inputs / 32]; otherwise null.
  const std::uint8_t* scales = nullptr;
};

/// out = x · weightᵀ for consecutive outputs of the matrix.
struct MatmulArgs {
  int rows = 0;
  const float* x = nullptr;  ///< [rows, x_stride]
  int x_stride = 0;
  WeightMatrix weight;
  int first_output = 0;
  int outputs = 0;
  Rounding rounding = Rounding::kNone;
  float* out = nullptr;  ///< [rows, out_stride]
  int out_stride = 0;
};

/// A block-quantized round trip.
enum class QuantFormat { kQ8, kQ4i };
struct QuantizeArgs {
  QuantFormat format = QuantFormat::kQ8;
  int rows = 0, width = 0;
  const float* x = nullptr;  ///< [rows, width]
  float* out = nullptr;      ///< [rows, width], may be x
};

/// Cosine and sine of position[i]·frequency, the angle rounded to float32 once.
struct RopeTableArgs {
  int rows = 0, pairs = 0;
  const std::int32_t* position = nullptr;  ///< [rows]
  int position_scale = 1;                  ///< the position is position[i]·position_scale
  const float* frequency = nullptr;        ///< [pairs]
  float* cosine = nullptr;                 ///< [rows, pairs], out
  float* sine = nullptr;                   ///< [rows, pairs], out
};

/// Rotates adjacent pairs of the last 2·pairs channels of every head, in place.
enum class RopeDirection { kForward, kInverse };
struct RopeArgs {
  RopeDirection direction = RopeDirection::kForward;
  int rows = 0, heads = 0, width = 0, pairs = 0;
  const float* cosine = nullptr;  ///< [rows, pairs]
  const float* sine = nullptr;    ///< [rows, pairs]
  Rounding rounding = Rounding::kNone;
  float* x = nullptr;  ///< [rows, heads, width]
};

/// Coefficients of one hyper-connection site (model specification, section 2.2).
struct MixArgs {
  int rows = 0, copies = 0, width = 0, sinkhorn_rounds = 0;
  const float* stream = nullptr;  ///< [rows, copies·width]
  WeightMatrix fn;                ///< [(2 + copies)·copies, copies·width]
  const float* base = nullptr;    ///< [(2 + copies)·copies]
  const float* scale = nullptr;   ///< [3]
  float norm_eps = 0, hc_eps = 0;
  float* a = nullptr;  ///< [rows, copies], out
  float* p = nullptr;  ///< [rows, copies], out
  float* c = nullptr;  ///< [rows, copies, copies], out: source, destination
};

/// out = Σ_k a[k]·stream[k]
struct CollapseArgs {
  int rows = 0, copies = 0, width = 0;
  const float* a = nullptr;       ///< [rows, copies]
  const float* stream = nullptr;  ///< [rows, copies, width]
  Rounding rounding = Rounding::kNone;
  float* out = nullptr;  ///< [rows, width]
};

/// stream[k] = p[k]·y + Σ_j c[j][k]·stream[j]
struct ExpandArgs {
  int rows = 0, copies = 0, width = 0;
  const float* p = nullptr;  ///< [rows, copies]
  const float* c = nullptr;  ///< [rows, copies, copies]
  const float* y = nullptr;  ///< [rows, width]
  Rounding rounding = Rounding::kNone;
  float* stream = nullptr;  ///< [rows, copies, width], in and out
};

/// Combines the tokens of every entry: a softmax over the group for each channel. At ratio 1 the
/// values are taken as they are and `gates` and `carry` are null. Earlier tokens of a group that
/// lie before the step are read from the carry.
struct CompressArgs {
  StepRows rows;
  StepEntries entries;
  int ratio = 1, width = 0;
  const float* values = nullptr;  ///< [rows, width]
  const float* gates = nullptr;   ///< [rows, width]
  const float* carry =
      nullptr;  ///< [slots, ratio − 1, 2, width]: value and gate of position % ratio
  Rounding rounding = Rounding::kNone;
  float* out = nullptr;  ///< [entries, width]
};

/// Keeps values and gates of the tokens of each sequence's unfinished group; runs after compress().
struct StoreCarryArgs {
  StepRows rows;
  int ratio = 1, width = 0;
  const float* values = nullptr;
  const float* gates = nullptr;
  float* carry = nullptr;  ///< as above, in and out
};

/// Encodes rows into the blocks of their sequences.
enum class PlaneKind { kEntries, kIndexKeys };
struct StoreEntriesArgs {
  PlaneKind plane = PlaneKind::kEntries;
  StepRows rows;
  StepEntries entries;
  const kv::SourceLayout* source = nullptr;
  KvPool pool;
  const float* values = nullptr;  ///< [entries, width of the plane]
};

/// Writes the newest latents of every sequence into its ring; older ones than the ring holds are
/// left out. Runs after attention(), which still reads what they replace.
struct StoreWindowArgs {
  StepRows rows;
  int width = 0;
  const float* latents = nullptr;  ///< [rows, width]
  kv::RingGeometry ring;
  float* rings = nullptr;  ///< [slots, ring slots, width] of one layer
};

/// Puts the latents of positions [max(keep_from, keep_anchor − window), keep_anchor) aside, as far
/// as they are computed: those of this step's rows, older ones out of the ring, which must still
/// hold them. Runs after store_window().
struct KeepWindowArgs {
  StepRows rows;
  int width = 0;
  const float* latents = nullptr;  ///< [rows, width]
  kv::RingGeometry ring;
  const float* rings = nullptr;  ///< [slots, ring slots, width] of one layer
  float* kept = nullptr;         ///< [slots, window, width] of one layer; place = position % window
};

/// Which candidate blocks a selection makes or obeys.
enum class CandidateRole { kNone, kSource, kRestricted };

/// Chooses up to top_k visible entries for every row (model specification, section 2.4): entry j is
/// visible at position i when j < (i + 1) / ratio; its score is Σ_h weight_h·relu(q_h·key_j) in
/// float32. Equal scores, −0 and +0 included, go to the lower index. The result ascends.
struct SelectArgs {
  StepRows rows;
  int heads = 0, width = 0, top_k = 0;
  const float* q = nullptr;        ///< [rows, heads, width]
  const float* weights = nullptr;  ///< [rows, heads]
  const kv::SourceLayout* source = nullptr;
  KvPool pool;
  CandidateRole role = CandidateRole::kNone;
  int block_size = 0, top_blocks = 0;
  /// [rows, top_blocks] ascending; out for kSource, in for kRestricted.
  std::int32_t* candidates = nullptr;
  std::int32_t* candidate_count = nullptr;  ///< [rows]; −1: every block
  std::int32_t* selected = nullptr;         ///< [rows, top_k], out
  std::int32_t* selected_count = nullptr;   ///< [rows], out
};

/// Attention of every row over its window latents and its selected entries, one softmax with a sink
/// (model specification, section 2.3, item 4). Keys in order: window by position, then entries by
/// index.
struct AttentionArgs {
  StepRows rows;
  int heads = 0, width = 0;
  float scale = 0;
  const float* q = nullptr;        ///< [rows, heads, width]
  const float* latents = nullptr;  ///< [rows, width] of this step's rows
  kv::RingGeometry ring;
  const float* rings =
      nullptr;  ///< [slots, ring slots, width] of this layer: earlier steps' latents
  const float* sink = nullptr;               ///< [heads]
  const kv::SourceLayout* source = nullptr;  ///< null: window only
  KvPool pool;
  int top_k = 0;
  const std::int32_t* selected = nullptr;        ///< [rows, top_k]
  const std::int32_t* selected_count = nullptr;  ///< [rows]
  Rounding rounding = Rounding::kNone;
  float* out = nullptr;  ///< [rows, heads, width]
};

/// Picks experts from gate logits (section 2.5): top_k of sqrt(softplus(logit / temperature)) +
/// bias, ties to the lower id; weights are the unbiased scores, normalised and scaled.
struct RouteArgs {
  int rows = 0, experts = 0, top_k = 0;
  const float* logits = nullptr;  ///< [rows, experts]
  const float* bias = nullptr;    ///< [experts]
  float temperature = 1, scale = 1;
  std::int32_t* ids = nullptr;  ///< [rows, top_k], out, ascending
  float* weights = nullptr;     ///< [rows, top_k], out, in the order of ids
};

/// out = silu(min(g, limit))·clamp(u, ±limit)·row weight; a limit of 0 or less does not clamp.
struct SwigluArgs {
  int rows = 0, width = 0;
  const float* g = nullptr;        ///< [rows, width]
  const float* u = nullptr;        ///< [rows, width]
  const float* weights = nullptr;  ///< [rows], null: 1
  float limit = 0;
  Rounding rounding = Rounding::kNone;
  float* out = nullptr;  ///< [rows, width]; may be g
};

/// One expert's matrices.
struct ExpertWeights {
  WeightMatrix w1;  ///< [inner, width], gate
  WeightMatrix w2;  ///< [width, inner], down
  WeightMatrix w3;  ///< [inner, width], up
};

/// Sum of the routed experts' outputs, float32, added in ascending expert id.
struct RoutedExpertsArgs {
  int rows = 0, width = 0, inner = 0, experts = 0, top_k = 0;
  const float* x = nullptr;  ///< [rows, width], already quantized where the model asks for it
  const std::int32_t* ids = nullptr;     ///< [rows, top_k] ascending
  const float* weights = nullptr;        ///< [rows, top_k]
  const ExpertWeights* table = nullptr;  ///< [experts]
  float limit = 0;
  Rounding rounding =
      Rounding::kNone;   ///< of every product; kBf16 also quantizes the inner activations
  float* out = nullptr;  ///< [rows, width]
};

struct AddArgs {
  std::size_t count = 0;
  const float* x = nullptr;
  Rounding rounding = Rounding::kNone;
  float* out = nullptr;  ///< out += x
};

/// out[i] = x[index[i]]; in place when index ascends.
struct GatherRowsArgs {
  int rows = 0, width = 0;
  const std::int32_t* index = nullptr;  ///< [rows]
  const float* x = nullptr;
  float* out = nullptr;
};

/// The operations of the forward pass: one contract for all backends, one test suite over all of
/// them.
///
/// Every op queues its work on the stream and returns without waiting. Pointers are on the stream's
/// device, tensors are row-major float32 unless said otherwise. The order of every summation is
/// fixed by the row alone: a row's bits do not depend on how many rows, sequences or experts share
/// the call. Every sum over channels (products of a matmul, mean squares, attention scores) runs in
/// 16 interleaved partial sums by fused multiply-add, which are then added pairwise at distances 8,
/// 4, 2, 1. Sizes are the caller's responsibility; an op cannot fail.
class Ops {
 public:
  virtual ~Ops() = default;

  virtual void embed(Stream& stream, const EmbedArgs& args) = 0;
  virtual void engram_gather(Stream& stream, const EngramGatherArgs& args) = 0;
  virtual void engram_apply(Stream& stream, const EngramApplyArgs& args) = 0;
  virtual void rms_norm(Stream& stream, const RmsNormArgs& args) = 0;
  virtual void matmul(Stream& stream, const MatmulArgs& args) = 0;
  virtual void quantize(Stream& stream, const QuantizeArgs& args) = 0;
  virtual void rope_table(Stream& stream, const RopeTableArgs& args) = 0;
  virtual void rope(Stream& stream, const RopeArgs& args) = 0;
  virtual void mix(Stream& stream, const MixArgs& args) = 0;
  virtual void collapse(Stream& stream, const CollapseArgs& args) = 0;
  virtual void expand(Stream& stream, const ExpandArgs& args) = 0;
  virtual void compress(Stream& stream, const CompressArgs& args) = 0;
  virtual void store_carry(Stream& stream, const StoreCarryArgs& args) = 0;
  virtual void store_entries(Stream& stream, const StoreEntriesArgs& args) = 0;
  virtual void store_window(Stream& stream, const StoreWindowArgs& args) = 0;
  virtual void keep_window(Stream& stream, const KeepWindowArgs& args) = 0;
  virtual void select(Stream& stream, const SelectArgs& args) = 0;
  virtual void attention(Stream& stream, const AttentionArgs& args) = 0;
  virtual void route(Stream& stream, const RouteArgs& args) = 0;
  virtual void swiglu(Stream& stream, const SwigluArgs& args) = 0;
  virtual void routed_experts(Stream& stream, const RoutedExpertsArgs& args) = 0;
  virtual void add(Stream& stream, const AddArgs& args) = 0;
  virtual void gather_rows(Stream& stream, const GatherRowsArgs& args) = 0;
};

}  // namespace millrace::dataplane::engine
