#include "dataplane/engine/step_batch.h"

#include <algorithm>

#include "common/check.h"

namespace millrace::dataplane::engine {
namespace {

void clear(RowArrays& arrays, int table_stride) {
  for (auto* v :
       {&arrays.position, &arrays.sequence, &arrays.first_row, &arrays.slot, &arrays.window_floor,
        &arrays.keep_anchor, &arrays.keep_from, &arrays.block_table}) {
    v->clear();
  }
  arrays.first_row.push_back(0);
  arrays.table_stride = table_stride;
}

/// Appends a sequence with rows at [first, last).
void append(RowArrays& arrays, const Sequence& sequence, int window_floor, int first, int last) {
  const auto number = static_cast<std::int32_t>(arrays.slot.size());
  for (int position = first; position < last; ++position) {
    arrays.position.push_back(position);
    arrays.sequence.push_back(number);
  }
  arrays.first_row.push_back(static_cast<std::int32_t>(arrays.position.size()));
  arrays.slot.push_back(sequence.slot);
  arrays.window_floor.push_back(window_floor);
  arrays.keep_anchor.push_back(sequence.keep_anchor);
  arrays.keep_from.push_back(sequence.keep_from);
  const std::size_t table = arrays.block_table.size();
  arrays.block_table.resize(table + static_cast<std::size_t>(arrays.table_stride), 0);
  for (std::size_t i = 0; i < sequence.blocks.size(); ++i) {
    arrays.block_table[table + i] = sequence.blocks[i].index();
  }
}

}  // namespace

StepRows RowArrays::view() const {
  return {.rows = static_cast<int>(position.size()),
          .sequences = static_cast<int>(slot.size()),
          .position = position.data(),
          .sequence = sequence.data(),
          .first_row = first_row.data(),
          .slot = slot.data(),
          .window_floor = window_floor.data(),
          .keep_anchor = keep_anchor.data(),
          .keep_from = keep_from.data(),
          .block_table = block_table.data(),
          .table_stride = table_stride};
}

StepEntries EntryArrays::view() const {
  return {.entries = static_cast<int>(index.size()),
          .last_row = last_row.data(),
          .index = index.data()};
}

void StepBatch::build(std::span<const StepPart> parts) {
  int stride = 1;
  for (const StepPart& part : parts) {
    stride = std::max(stride, static_cast<int>(part.sequence->blocks.size()));
  }
  clear(encoder, stride);
  clear(decoder, stride);
  tokens.clear();
  decoder_index.clear();
  logits_index.clear();
  for (int layer : config_.kv_source_layer_ids) {
    EntryArrays& arrays = entries[config_.ratio(layer)];
    arrays.last_row.clear();
    arrays.index.clear();
  }
  for (const StepPart& part : parts) add_part(part);
}

void StepBatch::add_part(const StepPart& part) {
  const Sequence& sequence = *part.sequence;
  const int end = sequence.length();
  const int start = end - part.rows;
  CHECK(part.rows > 0 && start >= 0);
  const auto first_row = static_cast<int>(tokens.size());
  tokens.insert(tokens.end(), sequence.tokens.begin() + start, sequence.tokens.end());
  append(encoder, sequence, sequence.window_floor, start, end);
  add_entries(part, first_row);

  const int decoder_start = std::max(start, sequence.decoder_floor);
  if (decoder_start >= end) return;
  for (int position = decoder_start; position < end; ++position) {
    decoder_index.push_back(first_row + position - start);
  }
  append(decoder, sequence, sequence.decoder_floor, decoder_start, end);
  const auto decoder_end = static_cast<std::int32_t>(decoder_index.size());
  for (int i = part.logits_rows; i > 0; --i) logits_index.push_back(decoder_end - i);
}

void StepBatch::add_entries(const StepPart& part, int first_row) {
  const Sequence& sequence = *part.sequence;
  const int start = sequence.length() - part.rows;
  for (auto& [ratio, arrays] : entries) {
    for (int row = 0; row < part.rows; ++row) {
      const int next = start + row + 1;
      if (next % ratio != 0) continue;
      const int index = next / ratio - 1;
      if (index < sequence.write_floor / ratio) continue;
      arrays.last_row.push_back(first_row + row);
      arrays.index.push_back(index);
    }
  }
}

void StepBatch::engram_rows(std::span<const StepPart> parts, const model::EngramHash& hash,
                            std::span<const std::int32_t> token_map,
                            std::vector<std::int64_t>& out) {
  const auto ngram = static_cast<std::size_t>(config_.engram_max_ngram_size);
  const auto columns = static_cast<std::size_t>(hash.columns());
  const std::int32_t pad = token_map[static_cast<std::size_t>(config_.engram_pad_token_id)];
  lookback_.resize(ngram);
  out.resize(tokens.size() * columns);
  std::size_t row = 0;
  for (const StepPart& part : parts) {
    const std::vector<TokenId>& ids = part.sequence->tokens;
    for (auto position = ids.size() - static_cast<std::size_t>(part.rows); position < ids.size();
         ++position) {
      for (std::size_t i = 0; i < ngram; ++i) {
        lookback_[i] = i <= position ? token_map[static_cast<std::size_t>(ids[position - i])] : pad;
      }
      hash.rows(lookback_, std::span(out).subspan(row * columns, columns));
      ++row;
    }
  }
}

}  // namespace millrace::dataplane::engine
