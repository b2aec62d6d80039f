#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dataplane/model/config.h"

namespace millrace::dataplane::engine::oracle {

/// A hand-over buffer taken apart by its drawing in handover.h, independently of the codec.
struct ExportView {
  std::vector<std::int32_t> tokens;
  std::vector<std::span<const std::byte>> blocks;
  std::vector<std::vector<std::span<const std::byte>>> windows;  ///< by layer: rows, oldest first
  std::vector<std::vector<float>> pending_values;                ///< by layer, [pending, head_dim]
  std::vector<std::vector<float>> pending_gates;
};

/// row_bytes: of one window row in this layout.
ExportView take_apart(std::span<const std::byte> buffer, const model::ModelConfig& config,
                      std::size_t row_bytes);

}  // namespace millrace::dataplane::engine::oracle
