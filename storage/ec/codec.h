#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace millrace::storage::ec {

/// Most shards of a code, k + m: an erasure pattern is a word.
inline constexpr int kMaxShards = 32;

enum class Kernel {
  kIsal,      ///< ISA-L, with the vector instructions of the machine
  kPortable,  ///< tables of our own (storage/ec/galois.h), a hundred times slower, equal bytes
};

/// A shard that is there, and one that is wanted. The index is that of the shard in its group:
/// 0 .. k-1 data, k .. k+m-1 parity.
struct ShardInput {
  int index = 0;
  std::span<const std::byte> bytes;
};
struct ShardOutput {
  int index = 0;
  std::span<std::byte> bytes;
};

/// A systematic erasure code of k data and m parity shards: any k of the k + m give all the others.
///
/// It reads and writes the caller's memory and keeps none of it. All shards of a call have one
/// length; outputs overlap nothing; 64-byte alignment is faster, none is needed. Tables of erasure
/// patterns are kept (bounded); any thread.
class Codec {
 public:
  /// kInvalidArgument unless 1 <= k, 0 <= m and k + m <= kMaxShards.
  static absl::StatusOr<std::unique_ptr<const Codec>> make(int data_shards, int parity_shards,
                                                           Kernel kernel = Kernel::kIsal);
  ~Codec();
  Codec(const Codec&) = delete;
  Codec& operator=(const Codec&) = delete;

  int data_shards() const { return data_shards_; }
  int parity_shards() const { return parity_shards_; }

  /// Computes the m parity shards of k data shards.
  /// kInvalidArgument: other numbers or lengths of shards than that.
  absl::Status encode(std::span<const std::span<const std::byte>> data,
                      std::span<const std::span<std::byte>> parity) const;

  /// Computes wanted shards, data or parity, from k others (of more, those with the lowest
  /// indices). kDataLoss: fewer than k are there; kInvalidArgument: an index that is no shard or
  /// occurs twice, lengths that differ.
  ///
  /// It cannot see that a shard's bytes are wrong: k shards decode to something, whatever they are.
  absl::Status reconstruct(std::span<const ShardInput> present,
                           std::span<const ShardOutput> wanted) const;

 private:
  struct Tables;
  struct Cache;
  struct Selection;

  Codec(int data_shards, int parity_shards, Kernel kernel);
  std::shared_ptr<const Tables> tables_for(const Selection& selection) const;
  std::shared_ptr<const Tables> make_tables(std::uint32_t present, std::uint32_t wanted) const;

  const int data_shards_;
  const int parity_shards_;
  const Kernel kernel_;
  std::unique_ptr<Cache> cache_;
  std::shared_ptr<const Tables> encoding_;
};

}  // namespace millrace::storage::ec
