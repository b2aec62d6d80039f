#include "storage/kv/hash_chain.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "common/check.h"
#include "common/crypto/hmac.h"

namespace millrace::storage::kv {
namespace {

std::array<std::uint8_t, 4> le32(std::size_t value) {
  return {static_cast<std::uint8_t>(value), static_cast<std::uint8_t>(value >> 8),
          static_cast<std::uint8_t>(value >> 16), static_cast<std::uint8_t>(value >> 24)};
}

std::span<const std::uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

/// Length and content: what makes "a" + "bc" another message than "ab" + "c".
template <typename Sink>
void put_framed(Sink&& sink, std::span<const std::uint8_t> field) {
  CHECK(field.size() <= UINT32_MAX);
  sink(std::span<const std::uint8_t>(le32(field.size())));
  sink(field);
}

constexpr std::size_t kBlockBytes = std::size_t{kBlockTokens} * 4;

/// Token ids as they are hashed.
std::array<std::uint8_t, kBlockBytes> encode_tokens(std::span<const TokenId> tokens) {
  std::array<std::uint8_t, kBlockBytes> encoded;
  if constexpr (std::endian::native == std::endian::little) {
    std::memcpy(encoded.data(), tokens.data(), encoded.size());
  } else {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto bytes = le32(static_cast<std::uint32_t>(tokens[i]));
      std::copy(bytes.begin(), bytes.end(), encoded.begin() + static_cast<std::ptrdiff_t>(4 * i));
    }
  }
  return encoded;
}

}  // namespace

Salt account_salt(std::span<const std::uint8_t> cluster_secret, std::string_view account,
                  std::string_view user_id) {
  std::vector<std::uint8_t> message;
  message.reserve(8 + account.size() + user_id.size());
  const auto sink = [&](std::span<const std::uint8_t> bytes) {
    message.insert(message.end(), bytes.begin(), bytes.end());
  };
  put_framed(sink, bytes_of(account));
  put_framed(sink, bytes_of(user_id));
  return hmac_sha256(cluster_secret, message);
}

BlockKey chain_root(const RootInputs& inputs) {
  Sha256 hash;
  const auto sink = [&](std::span<const std::uint8_t> bytes) { hash.update(bytes); };
  sink(std::span(&kChainFormatVersion, 1));
  put_framed(sink, inputs.artifact_digest);
  put_framed(sink, bytes_of(inputs.layout_id));
  put_framed(sink, inputs.salt);
  return BlockKey{hash.finish()};
}

BlockKey HashChain::append(std::span<const TokenId> tokens, std::span<const Sha256Digest> images) {
  CHECK(tokens.size() == kBlockTokens);
  hash_.update(last_.bytes);
  hash_.update(encode_tokens(tokens));
  for (const Sha256Digest& image : images) hash_.update(image);
  last_.bytes = hash_.finish();
  return last_;
}

std::vector<BlockKey> chain_keys(const BlockKey& root, std::span<const TokenId> tokens,
                                 std::span<const ImageSpan> images) {
  CHECK(std::is_sorted(images.begin(), images.end(), [](const ImageSpan& a, const ImageSpan& b) {
    return a.first_token < b.first_token;
  }));
  std::vector<BlockKey> keys;
  keys.reserve(tokens.size() / kBlockTokens);
  HashChain chain(root);
  std::vector<Sha256Digest> in_block;
  auto image = images.begin();
  for (std::size_t end = kBlockTokens; end <= tokens.size(); end += kBlockTokens) {
    in_block.clear();
    for (; image != images.end() && image->first_token < end; ++image)
      in_block.push_back(image->digest);
    keys.push_back(chain.append(tokens.subspan(end - kBlockTokens, kBlockTokens), in_block));
  }
  return keys;
}

}  // namespace millrace::storage::kv
