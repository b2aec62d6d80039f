#include "dataplane/engine/kept_window.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"
#include "common/str_cat.h"
#include "dataplane/model/number_formats.h"

namespace millrace::dataplane::engine {

void begin_keeping(Sequence& sequence, int rows, const kv::RingGeometry& geometry) {
  const int end = sequence.length();
  sequence.keep_anchor = 0;
  if (sequence.planned_anchor > 0) {
    sequence.keep_anchor = sequence.planned_anchor;
    sequence.keep_from = end - rows;
    return;
  }
  const int anchor = end / kv::kBlockTokens * kv::kBlockTokens;
  const bool is_new = anchor > sequence.last_anchor && end > sequence.prompt_tokens;
  const bool is_in_rings =
      end - anchor <= kv::kRingExtraSlots && anchor - geometry.window >= sequence.window_floor;
  if (!is_new || !is_in_rings) return;
  sequence.keep_anchor = anchor;
  sequence.keep_from = anchor - geometry.window;
}

void end_keeping(Sequence& sequence) {
  if (sequence.keep_anchor == 0 || sequence.length() < sequence.keep_anchor) return;
  sequence.kept_anchor = sequence.keep_anchor;
  sequence.last_anchor = std::max(sequence.last_anchor, sequence.keep_anchor);
  sequence.planned_anchor = 0;
}

void write_window_row(kv::Encoding encoding, std::span<const float> row, std::span<std::byte> out) {
  if (encoding == kv::Encoding::kFloat32) {
    CHECK(out.size() == row.size_bytes());
    std::memcpy(out.data(), row.data(), row.size_bytes());
    return;
  }
  CHECK(out.size() == row.size() + row.size() / model::kQ8Block);
  auto* codes = reinterpret_cast<std::uint8_t*>(out.data());
  model::pack_q8(row, codes, codes + row.size());
}

void read_window_row(kv::Encoding encoding, std::span<const std::byte> in, std::span<float> row) {
  if (encoding == kv::Encoding::kFloat32) {
    CHECK(in.size() == row.size_bytes());
    std::memcpy(row.data(), in.data(), row.size_bytes());
    return;
  }
  CHECK(in.size() == row.size() + row.size() / model::kQ8Block);
  const auto* codes = reinterpret_cast<const std::uint8_t*>(in.data());
  model::unpack_q8(codes, codes + row.size(), row);
}

std::size_t WindowCodec::bytes() const {
  return kv::window_bytes(config_, memory_.layout.encoding());
}

void WindowCodec::encode(const Sequence& sequence, std::span<std::byte> out) const {
  CHECK(sequence.kept_anchor > 0 && out.size() == bytes());
  const int window = memory_.geometry.window;
  const auto width = static_cast<std::size_t>(config_.head_dim);
  const std::size_t row_bytes = kv::window_row_bytes(config_, memory_.layout.encoding());
  const std::size_t first =
      static_cast<std::size_t>(sequence.slot) * static_cast<std::size_t>(window);
  for (int layer = 0; layer < config_.first_decoder_layer(); ++layer) {
    for (int p = sequence.kept_anchor - window; p < sequence.kept_anchor; ++p) {
      const std::size_t place = first + static_cast<std::size_t>(p % window);
      write_window_row(memory_.layout.encoding(), {memory_.kept(layer) + place * width, width},
                       out.first(row_bytes));
      out = out.subspan(row_bytes);
    }
  }
}

absl::Status WindowCodec::restore(std::span<const std::byte> in, const Sequence& sequence) {
  if (in.size() != bytes()) {
    return absl::InvalidArgumentError(
        str_cat("a window of ", in.size(), " bytes; this model's have ", bytes()));
  }
  const auto width = static_cast<std::size_t>(config_.head_dim);
  const std::size_t row_bytes = kv::window_row_bytes(config_, memory_.layout.encoding());
  const std::size_t first =
      static_cast<std::size_t>(sequence.slot) * static_cast<std::size_t>(memory_.geometry.slots());
  for (int layer = 0; layer < config_.first_decoder_layer(); ++layer) {
    for (int p = sequence.length() - memory_.geometry.window; p < sequence.length(); ++p) {
      const std::size_t place = first + static_cast<std::size_t>(memory_.geometry.slot(p));
      read_window_row(memory_.layout.encoding(), in.first(row_bytes),
                      {memory_.ring(layer) + place * width, width});
      in = in.subspan(row_bytes);
    }
  }
  return absl::OkStatus();
}

}  // namespace millrace::dataplane::engine
