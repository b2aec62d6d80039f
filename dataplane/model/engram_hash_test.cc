#include "dataplane/model/engram_hash.h"

#include <gtest/gtest.h>

#include <numeric>

namespace millrace::dataplane::model {
namespace {

ModelConfig released() {
  ModelConfig config;
  config.engram_layer_ids = {1, 14};
  config.engram_max_ngram_size = 4;
  config.engram_vocab_size = 16000000;
  config.engram_n_heads = 8;
  config.engram_compressed_vocab_size = 99092;
  return config;
}

// All numbers below: model specification, section 2.6 (recomputed there from the published code).

TEST(EngramPrimes, AreTheReleasedOnes) {
  const auto primes = engram_primes(released());
  ASSERT_EQ(primes.size(), 2u);
  const std::vector<std::vector<int>> released_tails = {
      {57,  79,  81,  97,  121, 129, 133, 183, 189, 207, 211, 253,
       277, 289, 307, 321, 339, 381, 393, 399, 403, 409, 447, 463},
      {477, 487, 499, 507, 511, 573, 609, 627, 667, 669, 693, 697,
       711, 729, 759, 769, 781, 799, 813, 819, 841, 877, 879, 889}};
  for (std::size_t layer = 0; layer < 2; ++layer) {
    ASSERT_EQ(primes[layer].size(), 24u);
    for (std::size_t i = 0; i < 24; ++i)
      EXPECT_EQ(primes[layer][i], 16000000 + released_tails[layer][i]);
  }
  EXPECT_EQ(std::accumulate(primes[0].begin(), primes[0].end(), std::int64_t{0}), 384006168);
  EXPECT_EQ(std::accumulate(primes[1].begin(), primes[1].end(), std::int64_t{0}), 384016682);
}

TEST(EngramPrimes, AreNeverHandedOutTwice) {
  ModelConfig config = released();
  config.engram_max_ngram_size = 3;
  config.engram_vocab_size = 64;
  config.engram_n_heads = 2;
  EXPECT_EQ(engram_primes(config),
            (std::vector<std::vector<std::int64_t>>{{67, 71, 73, 79}, {83, 89, 97, 101}}));
}

TEST(EngramMultipliers, AreTheOnesThatNumpyDraws) {
  using List = std::vector<std::int64_t>;
  EXPECT_EQ(engram_multipliers(1, 4, 99092),
            (List{76632096046245, 4839876093313, 35959672319349, 73987337458391}));
  EXPECT_EQ(engram_multipliers(14, 4, 99092),
            (List{67716810739261, 51510806800915, 30921347202721, 82619226485591}));
  EXPECT_EQ(engram_multipliers(1, 4, 64),
            (List{118650432209603643, 7493640653728489, 55676810147952557, 114555519428547269}));
  EXPECT_EQ(engram_multipliers(2, 4, 64),
            (List{118457471727074801, 57438995613704923, 35065230140349983, 110587526576600489}));
}

std::vector<std::int64_t> chosen_rows(int layer, std::vector<std::int32_t> lookback) {
  const EngramHash hash(released(), layer);
  std::vector<std::int64_t> rows(static_cast<std::size_t>(hash.columns()));
  hash.rows(lookback, rows);
  return {rows[0], rows[8], rows[16], rows[23]};
}

TEST(EngramHash, GivesThePublishedRows) {
  using List = std::vector<std::int64_t>;
  // Compressed ids 5, 7, 11, 99091; look-back is newest first, the pad token's compressed id is 2.
  EXPECT_EQ(chosen_rows(1, {99091, 11, 7, 5}), (List{3696153, 143487630, 261154234, 382908965}));
  EXPECT_EQ(chosen_rows(1, {5, 2, 2, 2}), (List{5412672, 143494632, 256353435, 372009279}));
  EXPECT_EQ(chosen_rows(14, {99091, 11, 7, 5}), (List{13123107, 143323937, 263124849, 378331785}));
  EXPECT_EQ(chosen_rows(14, {5, 2, 2, 2}), (List{6939818, 131576092, 268363546, 382274687}));
  // 5, dead, 11, 13: the dead token blocks everything behind it.
  EXPECT_EQ(chosen_rows(1, {13, 11, 2, 2}), (List{4449004, 139548245, 256194719, 369991666}));
}

}  // namespace
}  // namespace millrace::dataplane::model
