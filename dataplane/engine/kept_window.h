#pragma once

#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "dataplane/engine/layer_runner.h"
#include "dataplane/engine/sequence.h"

namespace millrace::dataplane::engine {

/// Which window the step that has just been given `rows` tokens of a sequence is to put aside; call
/// before the step. Behind the prompt it is copied out of the rings when the length passes a block
/// boundary, which they allow for as long as the step went at most kv::kRingExtraSlots rows beyond.
void begin_keeping(Sequence& sequence, int rows, const kv::RingGeometry& geometry);

/// After the step: a window whose last row has been computed is complete.
void end_keeping(Sequence& sequence);

/// One window latent outside the engine, kv::window_row_bytes() long. Exact: rings hold values that
/// went through the same rounding.
void write_window_row(kv::Encoding encoding, std::span<const float> row, std::span<std::byte> out);
void read_window_row(kv::Encoding encoding, std::span<const std::byte> in, std::span<float> row);

/// The windows of the encoder layers as bytes; Engine::window_bytes() draws them.
class WindowCodec {
 public:
  /// Everything passed in must outlive the codec.
  WindowCodec(const model::ModelConfig& config, KvMemory& memory)
      : config_(config), memory_(memory) {}

  std::size_t bytes() const;
  /// The kept window of a sequence that has one (CHECK).
  void encode(const Sequence& sequence, std::span<std::byte> out) const;
  /// Puts a window that ends at the sequence's length into its rings. kInvalidArgument: the size.
  absl::Status restore(std::span<const std::byte> in, const Sequence& sequence);

 private:
  const model::ModelConfig& config_;
  KvMemory& memory_;
};

}  // namespace millrace::dataplane::engine
