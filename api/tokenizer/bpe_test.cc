#include "api/tokenizer/bpe.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <random>
#include <set>
#include <string>

#include "api/tokenizer/linear_bpe.h"
#include "common/str_cat.h"

namespace millrace::api::tokenizer {
namespace {

struct Table {
  std::array<TokenId, 256> byte_tokens{};
  std::vector<Merge> merges;
};

/// Random merges over an alphabet of `letters` bytes; every pair at most once.
Table random_table(std::mt19937& random, int letters, int merge_count) {
  Table table;
  for (std::size_t byte = 0; byte < 256; ++byte)
    table.byte_tokens[byte] = static_cast<TokenId>(byte);
  std::vector<TokenId> known;
  known.reserve(static_cast<std::size_t>(letters) + static_cast<std::size_t>(merge_count));
  for (int i = 0; i < letters; ++i) known.push_back('a' + i);
  std::set<std::pair<TokenId, TokenId>> pairs;
  for (int i = 0; i < merge_count; ++i) {
    std::uniform_int_distribution<std::size_t> pick(0, known.size() - 1);
    const TokenId left = known[pick(random)];
    const TokenId right = known[pick(random)];
    if (!pairs.emplace(left, right).second) continue;
    const auto result = static_cast<TokenId>(256 + i);
    table.merges.push_back({left, right, result});
    known.push_back(result);
  }
  return table;
}

/// The definition: as long as any pair can merge, merge the one of lowest rank, of equals the
/// leftmost.
std::vector<TokenId> brute_force(const Table& table, std::string_view piece) {
  std::map<std::pair<TokenId, TokenId>, std::size_t> rank;
  for (std::size_t i = 0; i < table.merges.size(); ++i) {
    rank[{table.merges[i].left, table.merges[i].right}] = i;
  }
  std::vector<TokenId> ids;
  for (char c : piece) ids.push_back(table.byte_tokens[static_cast<unsigned char>(c)]);
  while (true) {
    std::size_t best_rank = table.merges.size();
    std::size_t best_place = 0;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto it = rank.find({ids[i], ids[i + 1]});
      if (it != rank.end() && it->second < best_rank) {
        best_rank = it->second;
        best_place = i;
      }
    }
    if (best_rank == table.merges.size()) return ids;
    ids[best_place] = table.merges[best_rank].result;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best_place) + 1);
  }
}

TEST(Bpe, EqualsTheBruteForceDefinitionOnRandomTables) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const int letters = 1 + static_cast<int>(random() % 4);
    const Table table = random_table(random, letters, 1 + static_cast<int>(random() % 40));
    const Bpe bpe(table.byte_tokens, table.merges);
    for (int i = 0; i < 20; ++i) {
      std::string piece(random() % 60, 'a');
      for (char& c : piece) c = static_cast<char>('a' + random() % static_cast<unsigned>(letters));
      std::vector<TokenId> ids;
      bpe.encode(piece, ids);
      ASSERT_EQ(ids, brute_force(table, piece)) << piece;
    }
  }
}

/// A file's tables of random merges, each with a text of its own, over the letters.
TokenizerFile random_file(std::mt19937& random, const std::string& letters, int merge_count) {
  TokenizerFile file;
  file.byte_level_tokens = TokenIndex({1000, 1000});
  std::map<std::string, TokenId> ids;
  const auto add = [&](const std::string& bytes) {
    const auto id = static_cast<TokenId>(ids.size());
    if (!ids.emplace(bytes, id).second) return false;
    file.token_bytes.set(id, bytes);
    return file.byte_level_tokens.add(bytes, id);
  };
  for (std::size_t byte = 0; byte < 256; ++byte) {
    file.byte_tokens[byte] = static_cast<TokenId>(byte);
    add(std::string(1, static_cast<char>(byte)));
  }
  std::vector<std::string> known;
  known.reserve(1000);
  for (const char letter : letters) known.emplace_back(1, letter);
  for (int i = 0; i < merge_count; ++i) {
    const std::string left = known[random() % known.size()];
    const std::string right = known[random() % known.size()];
    if (left.size() + right.size() > 40 || !add(left + right)) continue;
    file.merges.push_back({ids[left], ids[right], ids[left + right]});
    known.push_back(left + right);
  }
  return file;
}

/// The same over the first `letters` letters.
TokenizerFile random_file(std::mt19937& random, int letters, int merge_count) {
  return random_file(random, std::string("abcd").substr(0, static_cast<std::size_t>(letters)),
                     merge_count);
}

std::vector<TokenId> encode(const LinearBpe& linear, const std::string& piece,
                            LinearBpe::Scratch& scratch) {
  std::vector<TokenId> ids(piece.size());
  const TokenId* end = linear.encode(piece, piece.size(), scratch, ids.data());
  ids.resize(static_cast<std::size_t>(end - ids.data()));
  return ids;
}

TEST(LinearBpe, EqualsMergingOnRandomVocabularies) {
  for (unsigned seed = 0; seed < 1500; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const int letters = 1 + static_cast<int>(random() % 4);
    TokenizerFile file = random_file(random, letters, 1 + static_cast<int>(random() % 60));
    const Bpe merging(file.byte_tokens, file.merges);
    const TokenBytes bytes = file.token_bytes;
    const auto linear = LinearBpe::create(file);
    ASSERT_NE(linear, nullptr);
    LinearBpe::Scratch scratch;
    const auto compare = [&](const std::string& piece) {
      std::vector<TokenId> expected;
      merging.encode(piece, expected);
      const std::vector<TokenId> ids = encode(*linear, piece, scratch);
      ASSERT_EQ(ids, expected) << piece;
    };
    for (int i = 0; i < 30; ++i) {
      std::string piece(1 + random() % 80, 'a');
      for (char& c : piece) c = static_cast<char>('a' + random() % static_cast<unsigned>(letters));
      compare(piece);
    }
    // Tokens, alone and side by side: some of them no text can give.
    for (TokenId id = 256; id < bytes.id_bound(); ++id) {
      compare(std::string(bytes.of(id)));
      compare(str_cat(bytes.of(id), bytes.of('a'), bytes.of(id)));
    }
  }
}

// With so many merges the bits of what may merge collide and fill up; some of these bytes share
// theirs, and the two without merges lead nowhere.
TEST(LinearBpe, EqualsMergingOnLargeVocabularies) {
  const std::string letters = std::string("abcdefA!") + '\0' + "\x81\xe1\xff";
  const std::string bytes = letters + "zZ";
  for (unsigned seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const std::size_t used = 2 + random() % (letters.size() - 1);
    TokenizerFile file =
        random_file(random, letters.substr(0, used), 100 + static_cast<int>(random() % 600));
    const Bpe merging(file.byte_tokens, file.merges);
    const TokenBytes tokens = file.token_bytes;
    const auto linear = LinearBpe::create(file);
    ASSERT_NE(linear, nullptr);
    LinearBpe::Scratch scratch;
    for (int i = 0; i < 60; ++i) {
      std::string piece;
      for (std::size_t parts = 1 + random() % 200; parts > 0; --parts) {
        const auto some_token = static_cast<TokenId>(
            random() % static_cast<std::size_t>(tokens.id_bound() - 256) + 256);
        switch (i % 3) {
          case 0:
            piece.push_back(letters[random() % used]);
            break;
          case 1:
            piece.append(tokens.of(some_token));
            break;
          default:
            piece.push_back(bytes[random() % bytes.size()]);
        }
      }
      std::vector<TokenId> expected;
      merging.encode(piece, expected);
      ASSERT_EQ(encode(*linear, piece, scratch), expected) << piece;
    }
  }
}

TEST(LinearBpe, EqualsMergingOnRunsOfEveryLength) {
  std::mt19937 random(3);
  for (int round = 0; round < 20; ++round) {
    TokenizerFile file = random_file(random, 1, 12);
    const Bpe merging(file.byte_tokens, file.merges);
    const auto linear = LinearBpe::create(file);
    ASSERT_NE(linear, nullptr);
    LinearBpe::Scratch scratch;
    for (std::size_t length = 1; length < 300; ++length) {
      std::vector<TokenId> expected;
      merging.encode(std::string(length, 'a'), expected);
      const std::vector<TokenId> ids = encode(*linear, std::string(length, 'a'), scratch);
      ASSERT_EQ(ids, expected) << "round " << round << ", length " << length;
    }
  }
}

TEST(LinearBpe, LeavesTablesWhoseOrderItCannotUse) {
  std::mt19937 random(1);
  TokenizerFile file = random_file(random, 2, 0);
  const auto add = [&](TokenId id, const char* bytes) {
    file.token_bytes.set(id, bytes);
    file.byte_level_tokens.add(bytes, id);
  };
  add(256, "ab");
  add(257, "abb");
  const Merge ab{'a', 'b', 256};
  const Merge abb{256, 'b', 257};
  file.merges = {abb, ab};  // a part comes later
  EXPECT_EQ(LinearBpe::create(file), nullptr);
  file.merges = {ab, ab};  // one result twice
  EXPECT_EQ(LinearBpe::create(file), nullptr);
  file.merges = {ab, abb};
  EXPECT_NE(LinearBpe::create(file), nullptr);
}

TEST(Bpe, TimeOnOneLongPieceIsNotQuadratic) {
  std::mt19937 random(1);
  const Table table = random_table(random, 2, 60);
  const Bpe bpe(table.byte_tokens, table.merges);
  const auto encode = [&](std::size_t length) {
    const std::string piece(length, 'a');
    std::vector<TokenId> ids;
    const auto start = std::chrono::steady_clock::now();
    bpe.encode(piece, ids);
    return std::chrono::steady_clock::now() - start;
  };
  const auto small =
      std::max<std::chrono::nanoseconds>(encode(50'000), std::chrono::microseconds(500));
  // 16 times the length; a quadratic method would take 256 times as long.
  EXPECT_LT(encode(800'000), 100 * small);
}

}  // namespace
}  // namespace millrace::api::tokenizer
