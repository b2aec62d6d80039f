#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/crypto/sha256.h"
#include "common/types.h"
#include "storage/kv/block_key.h"

namespace millrace::storage::kv {

/// The names of KV blocks. Pure; any thread.
///
/// Two requests share a block only when everything that its bytes depend on is equal: the model
/// (every weight, tokenizer, configuration), the layout of KV, the account's salt, and every token
/// and image from the first on. All of that goes through SHA-256, so that neither chance nor an
/// attacker finds two contexts with one key.

/// Version of the encodings below; part of the root, so that a change shares nothing.
inline constexpr std::uint8_t kChainFormatVersion = 1;

/// A secret per account (and user), so that nobody can learn from a hit what others have asked.
using Salt = Sha256Digest;

/// HMAC-SHA-256(cluster_secret, message), where the message is
///
///     0    4     length of account in bytes, LE
///     4    a     account, as authenticated: never from the body of a request
///     4+a  4     length of user_id, LE
///     8+a  u     user_id: refines the account, cannot leave it
///
/// An absent user id is an empty one.
Salt account_salt(std::span<const std::uint8_t> cluster_secret, std::string_view account,
                  std::string_view user_id);

/// What every key of a model and salt depends on.
struct RootInputs {
  /// SHA-256 over configuration, tokenizer and the SHA-256 of every weight shard.
  Sha256Digest artifact_digest{};
  /// Names how KV lies in a block: types, order, layers, replay rule.
  std::string layout_id;
  Salt salt{};
};

/// SHA-256 over
///
///     0     1    kChainFormatVersion
///     1     4    32, LE
///     5     32   artifact digest
///     37    4    length of layout_id in bytes, LE
///     41    l    layout_id
///     41+l  4    32, LE
///     45+l  32   salt
BlockKey chain_root(const RootInputs& inputs);

/// An image of a prompt, at the token where it begins. It belongs to the block that holds this
/// token; the blocks behind inherit it through the chain.
struct ImageSpan {
  std::size_t first_token = 0;
  Sha256Digest digest{};  ///< of the image as the model sees it
};

/// Names the blocks of one prompt, one after the other:
///
///     key[i] = SHA-256(key[i-1] || 128 token ids, 4 bytes LE each || digests of its images)
///
/// with key[-1] = the root. Only full blocks have keys. One thread at a time.
class HashChain {
 public:
  explicit HashChain(const BlockKey& root) : last_(root) {}

  /// The key of the next block. `tokens` are exactly kBlockTokens (CHECK); `images` those that
  /// begin in this block, in the order of the prompt.
  BlockKey append(std::span<const TokenId> tokens, std::span<const Sha256Digest> images = {});

  /// The key of the last block, or the root.
  const BlockKey& last() const { return last_; }

 private:
  Sha256 hash_;
  BlockKey last_;
};

/// Keys of all full blocks of a prompt; what remains has none. `images` in ascending order of
/// first_token (CHECK); those that begin behind the last full block have no effect.
std::vector<BlockKey> chain_keys(const BlockKey& root, std::span<const TokenId> tokens,
                                 std::span<const ImageSpan> images = {});

}  // namespace millrace::storage::kv
