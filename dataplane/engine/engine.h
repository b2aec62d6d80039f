#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/types.h"

namespace millrace::dataplane::model {
class Checkpoint;
}

namespace millrace::dataplane::engine {

/// Whether an approximation that belongs to the model is applied. The defaults are the model as
/// trained; kOff exists for comparisons with an exact run.
enum class Switch { kOn, kOff };

/// `--engine rounding=off,decoder_replay=off`.
struct EngineSwitches {
  Switch rounding = Switch::kOn;        ///< bf16 between operators, quantized activations and KV
  Switch decoder_replay = Switch::kOn;  ///< decoder layers on the last window of the prompt only
};

/// Parses the text above; an unknown name or value is kInvalidArgument and lists what is allowed.
absl::StatusOr<EngineSwitches> parse_engine_switches(std::string_view text);

/// Bounds, fixed at the start; memory is allocated once.
struct EngineLimits {
  int kv_blocks = 2048;     ///< 128-token blocks in the pool
  int max_sequences = 64;   ///< sequences with rings and blocks at one time
  int max_step_rows = 512;  ///< rows (tokens) of one step over all sequences
  int threads = 1;  ///< that compute a step, the caller included; results do not depend on it
};

using SequenceId = std::int32_t;

/// What a sequence needs before its first row.
struct SequencePlan {
  int prompt_tokens = 0;  ///< prompt length; decoder layers run from max(0, prompt_tokens - window)
  int capacity_tokens = 0;  ///< positions it may reach; their blocks are reserved at creation
  int compute_start = 0;    ///< first position that will be run
  int write_floor =
      0;  ///< global entries of positions below it are used as they are, never written
  /// Tokens of [0, compute_start): n-gram lookups of the first rows read them. Copied by create().
  std::span<const TokenId> prefix_tokens = {};
  /// restore_window() follows: window keys exist from compute_start − window() on. Otherwise there
  /// are none below compute_start.
  bool has_window = false;
  /// The window of the encoder layers that ends there is kept as its rows are computed; 0: none.
  /// Must lie in [compute_start + window(), capacity_tokens].
  int window_anchor = 0;
};

/// Stored blocks on their way into a sequence.
class BlockSource {
 public:
  virtual ~BlockSource() = default;
  /// Copies bytes [offset, offset + out.size()) of a block. The parts of one block come in
  /// ascending order, without gaps; the last one ends with the block. Called on a thread of the
  /// engine. After an error nothing more is asked for.
  virtual absl::Status copy(int block, std::size_t offset, std::span<std::byte> out) = 0;
};

/// How well bringing stored blocks in hid behind the forward pass. Sums since the start.
struct SwapInUsage {
  std::uint64_t blocks = 0;
  double copy_seconds = 0;  ///< spent on copying
  double wait_seconds = 0;  ///< of which the forward pass stood still
};

/// Consecutive tokens of one sequence, at its next positions.
struct StepItem {
  SequenceId sequence = -1;
  std::span<const TokenId> tokens;
  int logits_rows =
      0;  ///< logits are wanted of this many last rows (0 for a chunk that is not final)
};

/// Pool occupancy, for load reports and leak checks.
struct EngineUsage {
  int sequences = 0;
  int kv_blocks_used = 0;
  int kv_blocks_total = 0;
};

/// One rank of the model: weights, KV pool, rings, and the forward pass over many sequences at
/// once.
///
/// A row's bits depend on its sequence's tokens alone, not on what else is in the step nor on how
/// the tokens were cut into chunks. Not thread-safe: one engine thread owns it.
class Engine {
 public:
  virtual ~Engine() = default;

  virtual int vocab_size() const = 0;
  virtual int max_position() const = 0;
  virtual int window() const = 0;
  /// Names the KV bytes (format, geometry, rounding): hand-overs between unequal layouts are
  /// refused.
  virtual const std::string& kv_layout_id() const = 0;
  virtual EngineUsage usage() const = 0;

  /// Reserves rings and blocks. kResourceExhausted when the pool or the sequence table is full,
  /// kInvalidArgument when the plan does not fit the model: positions out of order, compute_start
  /// inside a compressor group or above the decoder floor, prefix_tokens of another length. Blocks
  /// below write_floor must be filled through block() before the first step.
  virtual absl::StatusOr<SequenceId> create(const SequencePlan& plan) = 0;
  /// Gives everything back. The id becomes invalid.
  virtual void release(SequenceId sequence) = 0;
  /// The position of the next row: compute_start at first, then one more for every row run.
  virtual int length(SequenceId sequence) const = 0;

  /// Runs the rows of all items through the model and appends them to their sequences.
  ///
  /// logits [sum of logits_rows, vocab_size] float32, out, in the order of the items.
  /// Errors: kInvalidArgument (token outside the vocabulary, capacity exceeded, too many rows, a
  /// sequence named twice, logits of a row below the decoder floor); nothing has changed then.
  virtual absl::Status step(std::span<const StepItem> items, std::vector<float>& logits) = 0;

  /// Begins to bring blocks [0, blocks) in, in the order of the layers that read them, while
  /// earlier layers of the first step run; a layer waits for its part. Before the first step, once;
  /// the blocks lie below write_floor. The source lives until the last part was copied or the
  /// sequence is released.
  virtual void swap_in(SequenceId sequence, int blocks, std::shared_ptr<BlockSource> source) = 0;
  /// After the first step: OK when everything came in; else the source's error, and what was
  /// computed of this sequence, and what it kept, is worthless: it can only be released.
  virtual absl::Status swap_in_status(SequenceId sequence) const = 0;
  virtual SwapInUsage swap_in_usage() const = 0;

  /// Bytes of a window outside the engine: for every encoder layer window() rows by position, each
  /// one byte a channel E4M3 and one E8M0 scale for 32 channels, or 4 bytes a channel when the
  /// layout is float32.
  virtual std::size_t window_bytes() const = 0;
  /// Before the first row of a sequence whose plan says has_window: the window that ends at
  /// compute_start. kInvalidArgument when the size is another.
  virtual absl::Status restore_window(SequenceId sequence, std::span<const std::byte> window) = 0;
  /// Where the newest complete window that was kept ends; 0: there is none. Kept are the plan's
  /// anchor and, by steps that end behind the prompt, every multiple of a block that the step
  /// passes by at most kv::kRingExtraSlots rows.
  virtual int kept_anchor(SequenceId sequence) const = 0;
  /// Writes this window into window_bytes() bytes.
  virtual void export_window(SequenceId sequence, std::span<std::byte> out) const = 0;

  /// Bytes of one block of global KV.
  virtual std::size_t block_bytes() const = 0;
  /// The bytes of one block of a sequence: to put a stored block in before the first row, or to
  /// seal a full one. Valid until the sequence is released.
  virtual std::span<std::byte> block(SequenceId sequence, int block_index) = 0;

  /// Hand-over: everything the sequence holds, as one buffer of export_bytes() bytes.
  /// Header, tokens, blocks, rings, unfinished compressor groups; drawn byte by byte in the codec.
  virtual std::size_t export_bytes(SequenceId sequence) const = 0;
  virtual absl::Status export_to(SequenceId sequence, std::span<std::byte> out) const = 0;
  /// Creates a sequence from such a buffer, with room for capacity_tokens. kFailedPrecondition
  /// names both layouts when they differ; kDataLoss when the buffer is inconsistent.
  virtual absl::StatusOr<SequenceId> import_from(std::span<const std::byte> bytes,
                                                 int capacity_tokens) = 0;
};

/// The CPU engine. The checkpoint must outlive it. Errors name the tensor or the setting.
absl::StatusOr<std::unique_ptr<Engine>> open_cpu_engine(const model::Checkpoint& checkpoint,
                                                        const EngineSwitches& switches,
                                                        const EngineLimits& limits);

}  // namespace millrace::dataplane::engine
