#include "storage/ec/codec.h"

#include <isa-l/erasure_code.h>

#include <algorithm>
#include <array>
#include <bit>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "common/status_macros.h"
#include "common/str_cat.h"
#include "storage/ec/galois.h"

namespace millrace::storage::ec {
namespace {

/// Patterns whose tables are kept. A 10+2 code has 66 sets of survivors and few wanted sets each.
constexpr std::size_t kMaxCachedPatterns = 1024;

/// Bytes of ISA-L's tables for one coefficient. How they are filled depends on the CPU, so they
/// never leave the process.
constexpr std::size_t kTableBytes = 32;

using Pointers = std::array<unsigned char*, kMaxShards>;

unsigned char* pointer(std::span<std::byte> bytes) {
  return reinterpret_cast<unsigned char*>(bytes.data());
}

/// ISA-L takes sources as writable and only reads them.
unsigned char* pointer(std::span<const std::byte> bytes) {
  return const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(bytes.data()));
}

absl::Status check_length(std::size_t bytes, std::size_t expected) {
  if (bytes == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(
      str_cat("a shard of ", bytes, " bytes among shards of ", expected));
}

}  // namespace

/// Coefficients of outputs over inputs, and their expansion for the kernel.
struct Codec::Tables {
  explicit Tables(GfMatrix matrix) : coefficients(std::move(matrix)) {}
  GfMatrix coefficients;
  std::vector<unsigned char> expanded;
};

struct Codec::Cache {
  std::mutex mutex;
  std::unordered_map<std::uint64_t, std::shared_ptr<const Tables>> by_pattern;  // guarded by mutex
};

/// Inputs and outputs of one call in the order of their indices, which is that of the tables.
struct Codec::Selection {
  Selection(int inputs_of_call, Kernel chosen) : input_count(inputs_of_call), kernel(chosen) {}

  void run(const Tables& tables) {
    if (output_count == 0 || shard_bytes == 0) return;
    if (kernel == Kernel::kIsal) {
      // The tables are read only, too.
      ec_encode_data(static_cast<int>(shard_bytes), input_count, output_count,
                     const_cast<unsigned char*>(tables.expanded.data()), inputs.data(),
                     outputs.data());
      return;
    }
    for (int row = 0; row < output_count; ++row) {
      const std::span out(reinterpret_cast<std::byte*>(at(outputs, row)), shard_bytes);
      std::fill(out.begin(), out.end(), std::byte{0});
      for (int column = 0; column < input_count; ++column) {
        const std::span in(reinterpret_cast<const std::byte*>(at(inputs, column)), shard_bytes);
        gf_multiply_add(tables.coefficients.at(row, column), in, out);
      }
    }
  }

  static unsigned char*& at(Pointers& pointers, int index) {
    return pointers[static_cast<std::size_t>(index)];
  }

  int input_count;
  int output_count = 0;
  Kernel kernel;
  std::size_t shard_bytes = 0;
  std::uint32_t present = 0;
  std::uint32_t wanted = 0;
  Pointers inputs{};
  Pointers outputs{};
};

absl::StatusOr<std::unique_ptr<const Codec>> Codec::make(int data_shards, int parity_shards,
                                                         Kernel kernel) {
  if (data_shards < 1 || parity_shards < 0 || data_shards + parity_shards > kMaxShards) {
    return absl::InvalidArgumentError(str_cat(
        "an erasure code of ", data_shards, "+", parity_shards,
        " shards: at least one data shard and at most ", kMaxShards, " in all are possible"));
  }
  return std::unique_ptr<const Codec>(new Codec(data_shards, parity_shards, kernel));
}

Codec::Codec(int data_shards, int parity_shards, Kernel kernel)
    : data_shards_(data_shards),
      parity_shards_(parity_shards),
      kernel_(kernel),
      cache_(std::make_unique<Cache>()) {
  const auto all =
      static_cast<std::uint32_t>((std::uint64_t{1} << (data_shards + parity_shards)) - 1);
  const auto data = static_cast<std::uint32_t>((std::uint64_t{1} << data_shards) - 1);
  encoding_ = make_tables(data, all & ~data);
}

Codec::~Codec() = default;

absl::Status Codec::encode(std::span<const std::span<const std::byte>> data,
                           std::span<const std::span<std::byte>> parity) const {
  if (data.size() != static_cast<std::size_t>(data_shards_) ||
      parity.size() != static_cast<std::size_t>(parity_shards_)) {
    return absl::InvalidArgumentError(str_cat("encoding ", data.size(), "+", parity.size(),
                                              " shards with a code of ", data_shards_, "+",
                                              parity_shards_));
  }
  Selection selection(data_shards_, kernel_);
  selection.shard_bytes = data[0].size();
  for (std::size_t i = 0; i < data.size(); ++i) {
    RETURN_IF_ERROR(check_length(data[i].size(), selection.shard_bytes));
    selection.inputs[i] = pointer(data[i]);
  }
  for (std::size_t i = 0; i < parity.size(); ++i) {
    RETURN_IF_ERROR(check_length(parity[i].size(), selection.shard_bytes));
    selection.outputs[i] = pointer(parity[i]);
  }
  selection.output_count = parity_shards_;
  selection.run(*encoding_);
  return absl::OkStatus();
}

absl::Status Codec::reconstruct(std::span<const ShardInput> present,
                                std::span<const ShardOutput> wanted) const {
  if (wanted.empty()) return absl::OkStatus();
  const int shards = data_shards_ + parity_shards_;
  Selection selection(data_shards_, kernel_);
  selection.shard_bytes = wanted[0].bytes.size();
  Pointers by_index{};
  const auto place = [&](int index, std::size_t bytes, unsigned char* data,
                         std::uint32_t& mask) -> absl::Status {
    if (index < 0 || index >= shards || (mask >> index & 1) != 0) {
      return absl::InvalidArgumentError(
          str_cat("shard ", index, ": each of 0 to ", shards - 1, " at most once is possible"));
    }
    RETURN_IF_ERROR(check_length(bytes, selection.shard_bytes));
    mask |= std::uint32_t{1} << index;
    Selection::at(by_index, index) = data;
    return absl::OkStatus();
  };
  for (const ShardInput& shard : present)
    RETURN_IF_ERROR(
        place(shard.index, shard.bytes.size(), pointer(shard.bytes), selection.present));
  if (std::popcount(selection.present) < data_shards_) {
    return absl::DataLossError(str_cat(std::popcount(selection.present), " shards are left of ",
                                       shards, ", ", data_shards_, " are needed"));
  }
  int count = 0;
  for (int index = 0; index < shards; ++index) {
    if ((selection.present >> index & 1) == 0) continue;
    if (count == data_shards_) {
      selection.present &= ~(std::uint32_t{1} << index);
    } else {
      Selection::at(selection.inputs, count++) = Selection::at(by_index, index);
    }
  }
  for (const ShardOutput& shard : wanted)
    RETURN_IF_ERROR(place(shard.index, shard.bytes.size(), pointer(shard.bytes), selection.wanted));
  for (int index = 0; index < shards; ++index) {
    if ((selection.wanted >> index & 1) == 0) continue;
    Selection::at(selection.outputs, selection.output_count++) = Selection::at(by_index, index);
  }
  selection.run(*tables_for(selection));
  return absl::OkStatus();
}

std::shared_ptr<const Codec::Tables> Codec::tables_for(const Selection& selection) const {
  const std::uint64_t pattern = std::uint64_t{selection.present} << 32 | selection.wanted;
  {
    std::lock_guard lock(cache_->mutex);
    const auto found = cache_->by_pattern.find(pattern);
    if (found != cache_->by_pattern.end()) return found->second;
  }
  std::shared_ptr<const Tables> tables = make_tables(selection.present, selection.wanted);
  std::lock_guard lock(cache_->mutex);
  if (cache_->by_pattern.size() >= kMaxCachedPatterns) cache_->by_pattern.clear();
  cache_->by_pattern.emplace(pattern, tables);
  return tables;
}

/// With B the rows of the present shards in the code's matrix: data = B^-1 * present, and a wanted
/// shard is its own row of the matrix times that.
std::shared_ptr<const Codec::Tables> Codec::make_tables(std::uint32_t present,
                                                        std::uint32_t wanted) const {
  const GfMatrix code = cauchy_matrix(data_shards_, parity_shards_);
  GfMatrix survivors(data_shards_, data_shards_);
  int row = 0;
  for (int index = 0; index < code.rows; ++index) {
    if ((present >> index & 1) == 0) continue;
    for (int column = 0; column < data_shards_; ++column)
      survivors.at(row, column) = code.at(index, column);
    ++row;
  }
  const GfMatrix inverse = invert(std::move(survivors));
  GfMatrix coefficients(std::popcount(wanted), data_shards_);
  row = 0;
  for (int index = 0; index < code.rows; ++index) {
    if ((wanted >> index & 1) == 0) continue;
    for (int column = 0; column < data_shards_; ++column)
      for (int i = 0; i < data_shards_; ++i)
        coefficients.at(row, column) ^= gf_multiply(code.at(index, i), inverse.at(i, column));
    ++row;
  }
  auto tables = std::make_shared<Tables>(std::move(coefficients));
  if (kernel_ == Kernel::kIsal && tables->coefficients.rows > 0) {
    tables->expanded.resize(kTableBytes * tables->coefficients.values.size());
    ec_init_tables(data_shards_, tables->coefficients.rows, tables->coefficients.values.data(),
                   tables->expanded.data());
  }
  return tables;
}

}  // namespace millrace::storage::ec
