#include "dataplane/engine/oracle/export_view.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"

namespace millrace::dataplane::engine::oracle {
namespace {

std::uint64_t number_at(std::span<const std::byte> buffer, std::size_t offset, std::size_t bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < bytes; ++i)
    value |= static_cast<std::uint64_t>(buffer[offset + i]) << (8 * i);
  return value;
}

std::vector<float> floats_of(std::span<const std::byte> bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace

ExportView take_apart(std::span<const std::byte> buffer, const model::ModelConfig& config,
                      std::size_t row_bytes) {
  const auto u32 = [&](std::size_t offset) {
    return static_cast<int>(number_at(buffer, offset, 4));
  };
  const int length = u32(32);
  const int window_floor = u32(40);
  const int decoder_floor = u32(48);
  const int window = u32(64);
  const std::size_t block_bytes = number_at(buffer, 56, 8);
  std::span<const std::byte> rest = buffer.subspan(static_cast<std::size_t>(u32(12)));
  const auto take = [&](std::size_t bytes) {
    const auto front = rest.first(bytes);
    rest = rest.subspan(bytes);
    return front;
  };

  ExportView view;
  const auto tokens = take(static_cast<std::size_t>(length) * 4);
  view.tokens.resize(static_cast<std::size_t>(length));
  std::memcpy(view.tokens.data(), tokens.data(), tokens.size());
  for (int i = 0; i < u32(52); ++i) view.blocks.push_back(take(block_bytes));
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    const int floor = layer < config.first_decoder_layer() ? window_floor : decoder_floor;
    auto& rows = view.windows.emplace_back();
    for (int position = std::max(floor, length - window); position < length; ++position) {
      rows.push_back(take(row_bytes));
    }
  }
  view.pending_values.resize(static_cast<std::size_t>(config.num_hidden_layers));
  view.pending_gates.resize(static_cast<std::size_t>(config.num_hidden_layers));
  const std::size_t width = static_cast<std::size_t>(config.head_dim) * sizeof(float);
  for (int layer : config.kv_source_layer_ids) {
    const auto index = static_cast<std::size_t>(layer);
    for (int i = 0; i < length % config.ratio(layer); ++i) {
      for (auto* target : {&view.pending_values[index], &view.pending_gates[index]}) {
        const std::vector<float> row = floats_of(take(width));
        target->insert(target->end(), row.begin(), row.end());
      }
    }
  }
  CHECK(rest.empty(), "the buffer holds more than its drawing");
  return view;
}

}  // namespace millrace::dataplane::engine::oracle
