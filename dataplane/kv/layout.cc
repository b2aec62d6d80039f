#include "dataplane/kv/layout.h"

#include "common/check.h"
#include "common/str_cat.h"
#include "dataplane/model/number_formats.h"

namespace millrace::dataplane::kv {
namespace {

/// Places `rows` data and scale rows at `offset` and moves it past them.
Plane place(std::size_t& offset, int rows, int width, int data_bytes, int scale_bytes) {
  Plane plane{
      .offset = offset, .width = width, .data_bytes = data_bytes, .scale_bytes = scale_bytes};
  plane.scale_offset = plane.row(rows);
  offset = plane.scale_row(rows);
  return plane;
}

std::string make_id(const model::ModelConfig& config, Encoding encoding,
                    const std::vector<SourceLayout>& sources) {
  std::string id = str_cat("v41/", encoding == Encoding::kQuantized ? "quantized" : "float32", "/b",
                           kBlockTokens, "/w", config.sliding_window, "/h", config.head_dim, "/i",
                           config.index_head_dim, "/l", config.num_hidden_layers, "/s");
  for (std::size_t i = 0; i < sources.size(); ++i) {
    id += str_cat(i == 0 ? "" : ",", sources[i].layer, "r", sources[i].ratio);
  }
  return id;
}

}  // namespace

BlockLayout::BlockLayout(const model::ModelConfig& config, Encoding encoding)
    : encoding_(encoding) {
  for (int layer : config.kv_source_layer_ids) {
    SourceLayout source{.layer = layer,
                        .ratio = config.ratio(layer),
                        .entries_per_block = kBlockTokens / config.ratio(layer),
                        .entries = {},
                        .index_keys = {}};
    const int rows = source.entries_per_block;
    const int width = config.head_dim;
    const int index_width = config.index_head_dim;
    if (encoding == Encoding::kQuantized) {
      source.entries = place(block_bytes_, rows, width, width / 2, width / model::kQ4gBlock);
      source.index_keys =
          place(block_bytes_, rows, index_width, index_width / 2, index_width / model::kQ4iBlock);
    } else {
      source.entries = place(block_bytes_, rows, width, width * 4, 0);
      source.index_keys = place(block_bytes_, rows, index_width, index_width * 4, 0);
    }
    sources_.push_back(source);
  }
  id_ = make_id(config, encoding, sources_);
}

const SourceLayout& BlockLayout::source(int layer) const {
  for (const SourceLayout& source : sources_) {
    if (source.layer == layer) return source;
  }
  CHECK(false, "not a KV source layer");
}

std::size_t window_row_bytes(const model::ModelConfig& config, Encoding encoding) {
  const auto width = static_cast<std::size_t>(config.head_dim);
  return encoding == Encoding::kQuantized ? width + width / model::kQ8Block : width * sizeof(float);
}

std::size_t window_bytes(const model::ModelConfig& config, Encoding encoding) {
  return static_cast<std::size_t>(config.first_decoder_layer()) *
         static_cast<std::size_t>(config.sliding_window) * window_row_bytes(config, encoding);
}

}  // namespace millrace::dataplane::kv
