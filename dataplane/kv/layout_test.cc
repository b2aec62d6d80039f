#include "dataplane/kv/layout.h"

#include <gtest/gtest.h>

#include <set>

#include "common/mapped_file.h"
#include "dataplane/kv/block_pool.h"
#include "dataplane/kv/ring.h"
#include "dataplane/model/random_checkpoint.h"

namespace millrace::dataplane::kv {
namespace {

model::ModelConfig official() {
  const auto text = read_file(MILLRACE_SOURCE_DIR "/dataplane/model/testdata/official_config.json");
  EXPECT_TRUE(text.ok()) << text.status();
  return *model::parse_model_config(*text);
}

TEST(BlockLayout, OfficialBlockHasThePublishedBytes) {
  const BlockLayout layout(official(), Encoding::kQuantized);
  EXPECT_EQ(layout.block_bytes(), 113920u);
  ASSERT_EQ(layout.sources().size(), 4u);
  // 64 entries of 288 + 68 bytes in layers 2, 8 and 14, 128 in layer 20 (model specification,
  // section 5.1).
  EXPECT_EQ(layout.source(8).entries.offset, 22784u);
  EXPECT_EQ(layout.source(20).entries.offset, 3 * 22784u);
  const SourceLayout& first = layout.source(2);
  EXPECT_EQ(first.entries_per_block, 64);
  EXPECT_EQ(first.entries.row(1), 256u);
  EXPECT_EQ(first.entries.scale_row(0), 64 * 256u);
  EXPECT_EQ(first.entries.scale_row(1), 64 * 256u + 32u);
  EXPECT_EQ(first.index_keys.row(0), 64 * 288u);
  EXPECT_EQ(first.index_keys.scale_row(0), 64 * 288u + 64 * 64u);
  EXPECT_EQ(first.index_keys.scale_bytes, 4);
}

TEST(BlockLayout, OfficialWindowRowHasThePublishedBytes) {
  EXPECT_EQ(window_row_bytes(official(), Encoding::kQuantized), 528u);
  EXPECT_EQ(window_bytes(official(), Encoding::kQuantized), 20u * 67584u);  // 20 encoder layers
}

TEST(BlockLayout, PlanesCoverTheBlockWithoutOverlap) {
  for (const Encoding encoding : {Encoding::kQuantized, Encoding::kFloat32}) {
    const model::ModelConfig config = *model::parse_model_config(model::tiny_config_json());
    const BlockLayout layout(config, encoding);
    std::vector<int> covered(layout.block_bytes(), 0);
    const auto cover = [&](std::size_t first, int bytes) {
      for (std::size_t i = first; i < first + static_cast<std::size_t>(bytes); ++i) ++covered.at(i);
    };
    for (const SourceLayout& source : layout.sources()) {
      for (const Plane* plane : {&source.entries, &source.index_keys}) {
        for (int row = 0; row < source.entries_per_block; ++row) {
          cover(plane->row(row), plane->data_bytes);
          cover(plane->scale_row(row), plane->scale_bytes);
        }
      }
    }
    EXPECT_EQ(std::set<int>(covered.begin(), covered.end()), std::set<int>{1});
  }
}

TEST(BlockLayout, IdNamesEverythingTheBytesDependOn) {
  const model::ModelConfig config = official();
  EXPECT_EQ(BlockLayout(config, Encoding::kQuantized).id(),
            "v41/quantized/b128/w128/h512/i128/l40/s2r2,8r2,14r2,20r1");
  std::set<std::string> ids = {BlockLayout(config, Encoding::kFloat32).id(),
                               BlockLayout(config, Encoding::kQuantized).id()};
  model::ModelConfig other = config;
  other.head_dim = 256;
  ids.insert(BlockLayout(other, Encoding::kQuantized).id());
  other = config;
  other.sliding_window = 64;
  ids.insert(BlockLayout(other, Encoding::kQuantized).id());
  other = config;
  other.kv_source_layer_ids = {2, 8, 20};
  ids.insert(BlockLayout(other, Encoding::kQuantized).id());
  EXPECT_EQ(ids.size(), 5u);
}

TEST(BlockPool, HandsOutDistinctZeroedBlocksAndTakesThemBack) {
  auto pool = BlockPool::create(5, 64);
  ASSERT_TRUE(pool.ok());
  {
    auto blocks = (*pool)->take(3);
    ASSERT_TRUE(blocks.ok());
    std::set<std::byte*> places;
    for (const BlockHandle& block : *blocks) {
      places.insert(block.bytes().data());
      EXPECT_EQ(block.bytes().data(), (*pool)->base() + std::ptrdiff_t{block.index()} * 64);
      std::fill(block.bytes().begin(), block.bytes().end(), std::byte{7});
    }
    EXPECT_EQ(places.size(), 3u);
    EXPECT_EQ((*pool)->used(), 3);
    EXPECT_EQ((*pool)->take(3).status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ((*pool)->used(), 3) << "a refused request takes nothing";
    blocks->pop_back();
    EXPECT_EQ((*pool)->used(), 2);
    std::vector<BlockHandle> moved = *std::move(blocks);
    EXPECT_EQ((*pool)->used(), 2);
  }
  EXPECT_EQ((*pool)->used(), 0);
  const auto all = (*pool)->take(5);
  ASSERT_TRUE(all.ok());
  for (const BlockHandle& block : *all) {
    for (std::byte byte : block.bytes()) EXPECT_EQ(byte, std::byte{0});
  }
}

TEST(Ring, KeepsTheWindowAndSixMore) {
  const RingGeometry ring{.window = 128};
  EXPECT_EQ(ring.slots(), 134);
  EXPECT_EQ(ring.slot(133), 133);
  EXPECT_EQ(ring.slot(134), 0);
  EXPECT_EQ(ring.first_visible(1000, 0), 873);
  EXPECT_EQ(ring.first_visible(1000, 900), 900);
  EXPECT_EQ(ring.first_visible(5, 0), 0);
}

TEST(Blocks, AreCountedUpwards) {
  EXPECT_EQ(blocks_for(0), 0);
  EXPECT_EQ(blocks_for(1), 1);
  EXPECT_EQ(blocks_for(128), 1);
  EXPECT_EQ(blocks_for(129), 2);
}

}  // namespace
}  // namespace millrace::dataplane::kv
