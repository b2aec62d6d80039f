#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/types.h"
#include "dataplane/engine/layer_runner.h"
#include "dataplane/engine/sequence.h"

namespace millrace::dataplane::engine {

/// A sequence as one buffer, for the hand-over between engines. Little endian throughout.
///
///   0   char[8]  "MILLRKV1"
///   8   u32      version, 1
///   12  u32      header bytes (72 + layout id, rounded up to 8)
///   16  u64      bytes of the whole buffer
///   24  u64      FNV-1a (64 bit) of the header with this field zero
///   32  u32      length: positions run
///   36  u32      prompt tokens
///   40  u32      window floor: encoder layers have window rows from there on
///   44  u32      write floor
///   48  u32      decoder floor
///   52  u32      blocks
///   56  u64      bytes of one block
///   64  u32      window
///   68  u32      bytes of the layout id
///   72           layout id, then zeros up to the header bytes
///   then i32     tokens [length]
///   then         blocks, whole, as the block layout draws them
///   then         window rows: for every layer the positions max(floor, length − window) … length −
///   1,
///                ascending, floor being the window floor or, from the first decoder layer on, the
///                decoder floor; a row is 1 byte a channel E4M3 and one E8M0 scale for 32 channels,
///                or 4 bytes a channel when the layout is float32
///   then f32     for every KV source with ratio r > 1: values and gates [2, head_dim] of the last
///                length % r tokens
struct HandoverHeader {
  std::uint64_t total_bytes = 0;
  int length = 0;
  int prompt_tokens = 0;
  int window_floor = 0;
  int write_floor = 0;
  int decoder_floor = 0;
  int blocks = 0;
  std::uint64_t block_bytes = 0;
  int window = 0;
  std::string layout_id;
};

class HandoverCodec {
 public:
  /// Everything passed in must outlive the codec.
  HandoverCodec(const model::ModelConfig& config, KvMemory& memory)
      : config_(config), memory_(memory) {}

  std::size_t encoded_bytes(const Sequence& sequence) const;
  /// `out` must have exactly encoded_bytes().
  void encode(const Sequence& sequence, std::span<std::byte> out) const;

  /// Checks everything that can be checked without a sequence. kDataLoss: truncated, corrupt, not a
  /// hand-over, or numbers that contradict each other; kFailedPrecondition: another version or
  /// layout, both named.
  absl::StatusOr<HandoverHeader> read_header(std::span<const std::byte> bytes) const;
  /// The tokens behind a header; kDataLoss when one is outside the vocabulary.
  absl::StatusOr<std::vector<TokenId>> read_tokens(const HandoverHeader& header,
                                                   std::span<const std::byte> bytes) const;
  /// Fills blocks, rings and carries of a sequence that has the header's numbers and tokens.
  void restore(std::span<const std::byte> bytes, const Sequence& sequence);

 private:
  std::size_t header_bytes() const;
  std::size_t payload_bytes(int length, int window_floor, int decoder_floor) const;
  std::size_t window_rows(int length, int floor) const;
  int floor_of(const Sequence& sequence, int layer) const;

  const model::ModelConfig& config_;
  KvMemory& memory_;
};

}  // namespace millrace::dataplane::engine
