// millrace-storage-bench: what the arithmetic of the KV store costs on one core: naming blocks,
// cutting and restoring stripes, checksums. Each figure beside what bounds it, measured in turn on
// the same buffers.
#include <isa-l/crc.h>
#include <isa-l/erasure_code.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstring>
#include <functional>
#include <iomanip>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/check.h"
#include "common/json.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "storage/ec/codec.h"
#include "storage/ec/crc32c.h"
#include "storage/kv/hash_chain.h"
#include "storage/store/stripe.h"
#include "tests/bench/stopwatch.h"

namespace millrace::tests::bench {
namespace {

using Bytes = std::vector<std::byte>;

struct Options {
  std::size_t block_bytes = 113920;
  int data_shards = 10;
  int parity_shards = 2;
  double seconds = 1;
  bool json = false;
};

/// What is measured, and what it is compared with: nothing, or the bound.
struct Case {
  std::string name;
  std::string bound_name;
  std::size_t bytes = 0;  ///< that one call handles
  std::function<void()> work;
  std::function<void()> bound;
};

/// GB (10^9 bytes) a second of the best of many short runs of each, taken in turn, so that both see
/// the same machine.
struct Rates {
  double work = 0;
  double bound = 0;
};

double rate_of(const std::function<void()>& work, std::size_t bytes, int calls) {
  const Stopwatch watch(ClockKind::kCpu);
  for (int i = 0; i < calls; ++i) work();
  return static_cast<double>(bytes) * calls / watch.seconds() / 1e9;
}

Rates measure(const Case& test, double seconds) {
  test.work();
  Rates best;
  // Runs of about a millisecond: long beside the clock, short beside a time slice.
  const Stopwatch once(ClockKind::kCpu);
  test.work();
  const int calls = std::clamp(static_cast<int>(0.001 / std::max(once.seconds(), 1e-7)), 1, 10000);
  for (const Stopwatch total(ClockKind::kWall); total.seconds() < seconds || best.work == 0;) {
    best.work = std::max(best.work, rate_of(test.work, test.bytes, calls));
    if (test.bound) best.bound = std::max(best.bound, rate_of(test.bound, test.bytes, calls));
  }
  return best;
}

void report(const Case& test, const Options& options) {
  const Rates rates = measure(test, options.seconds);
  if (options.json) {
    Json line = {{"case", test.name}, {"gb_per_second", rates.work}, {"bytes", test.bytes}};
    if (test.bound) {
      line["bound"] = test.bound_name;
      line["bound_gb_per_second"] = rates.bound;
      line["ratio"] = rates.work / rates.bound;
    }
    std::cout << dump_json(line) << std::endl;
    return;
  }
  std::cout << std::left << std::setw(34) << test.name << std::right << std::fixed
            << std::setprecision(2) << std::setw(10) << rates.work;
  if (test.bound)
    std::cout << std::setw(10) << rates.bound << std::setw(8) << rates.work / rates.bound << "  "
              << test.bound_name;
  std::cout << std::endl;
}

/// One stripe in memory, with ISA-L's own tables for it.
class RawStripe {
 public:
  explicit RawStripe(const Options& options)
      : k_(options.data_shards),
        m_(options.parity_shards),
        shard_bytes_(storage::shard_payload_bytes(options.block_bytes, k_)),
        matrix_(static_cast<std::size_t>((k_ + m_) * k_)) {
    gf_gen_cauchy1_matrix(matrix_.data(), k_ + m_, k_);
    encoding_.resize(static_cast<std::size_t>(32 * k_ * m_));
    ec_init_tables(k_, m_, matrix_.data() + static_cast<std::ptrdiff_t>(k_) * k_, encoding_.data());
    std::mt19937 random(1);
    for (int i = 0; i < k_ + m_; ++i) {
      // As the fast kernels like it best, for both sides alike.
      auto* memory = static_cast<std::byte*>(std::aligned_alloc(64, shard_bytes_));
      CHECK(memory != nullptr);
      shards_.emplace_back(memory, &std::free);
      for (std::size_t j = 0; j < shard_bytes_; ++j) memory[j] = static_cast<std::byte>(random());
    }
  }

  std::size_t data_bytes() const { return shard_bytes_ * static_cast<std::size_t>(k_); }
  std::span<std::byte> shard(int index) const {
    return {shards_[static_cast<std::size_t>(index)].get(), shard_bytes_};
  }

  void encode() {
    std::vector<unsigned char*> in = pointers(0, k_);
    std::vector<unsigned char*> out = pointers(k_, m_);
    ec_encode_data(static_cast<int>(shard_bytes_), k_, m_, encoding_.data(), in.data(), out.data());
  }

  /// Tables that restore the first `lost` data shards from the k behind them.
  void prepare_decode(int lost) {
    std::vector<unsigned char> survivors(static_cast<std::size_t>(k_ * k_));
    std::copy_n(matrix_.begin() + static_cast<std::ptrdiff_t>(lost) * k_, survivors.size(),
                survivors.begin());
    std::vector<unsigned char> inverse(survivors.size());
    CHECK(gf_invert_matrix(survivors.data(), inverse.data(), k_) == 0);
    decoding_.resize(static_cast<std::size_t>(32 * k_ * lost));
    ec_init_tables(k_, lost, inverse.data(), decoding_.data());
  }
  void decode(int lost) {
    std::vector<unsigned char*> in = pointers(lost, k_);
    std::vector<unsigned char*> out = pointers(0, lost);
    ec_encode_data(static_cast<int>(shard_bytes_), k_, lost, decoding_.data(), in.data(),
                   out.data());
  }

 private:
  std::vector<unsigned char*> pointers(int first, int count) const {
    std::vector<unsigned char*> result;
    result.reserve(static_cast<std::size_t>(count));
    for (int i = first; i < first + count; ++i)
      result.push_back(reinterpret_cast<unsigned char*>(shard(i).data()));
    return result;
  }

  const int k_;
  const int m_;
  const std::size_t shard_bytes_;
  std::vector<unsigned char> matrix_;
  std::vector<unsigned char> encoding_;
  std::vector<unsigned char> decoding_;
  std::vector<std::unique_ptr<std::byte, decltype(&std::free)>> shards_;
};

absl::Status bench_codec(const Options& options) {
  const int k = options.data_shards;
  const int m = options.parity_shards;
  RawStripe stripe(options);
  ASSIGN_OR_RETURN(const auto codec, storage::ec::Codec::make(k, m));
  ASSIGN_OR_RETURN(const auto portable,
                   storage::ec::Codec::make(k, m, storage::ec::Kernel::kPortable));
  const auto encode = [&](const storage::ec::Codec& with) {
    std::vector<std::span<const std::byte>> data;
    std::vector<std::span<std::byte>> parity;
    data.reserve(static_cast<std::size_t>(k));
    parity.reserve(static_cast<std::size_t>(m));
    for (int i = 0; i < k; ++i) data.emplace_back(stripe.shard(i));
    for (int i = k; i < k + m; ++i) parity.emplace_back(stripe.shard(i));
    CHECK(with.encode(data, parity).ok());
  };
  report(
      {"encode", "ISA-L", stripe.data_bytes(), [&] { encode(*codec); }, [&] { stripe.encode(); }},
      options);
  for (int lost = 1; lost <= m; ++lost) {
    stripe.prepare_decode(lost);
    const auto decode = [&] {
      std::vector<storage::ec::ShardInput> present;
      std::vector<storage::ec::ShardOutput> wanted;
      present.reserve(static_cast<std::size_t>(k));
      wanted.reserve(static_cast<std::size_t>(lost));
      for (int i = lost; i < lost + k; ++i) present.push_back({i, stripe.shard(i)});
      for (int i = 0; i < lost; ++i) wanted.push_back({i, stripe.shard(i)});
      CHECK(codec->reconstruct(present, wanted).ok());
    };
    report({str_cat("decode, ", lost, " data shards lost"), "ISA-L", stripe.data_bytes(), decode,
            [&] { stripe.decode(lost); }},
           options);
  }
  report({"encode, portable tables", "", stripe.data_bytes(), [&] { encode(*portable); }, {}},
         options);
  return absl::OkStatus();
}

/// Whole blocks as a client handles them: cut, sealed and checksummed; verified and put together.
absl::Status bench_blocks(const Options& options) {
  ASSIGN_OR_RETURN(const auto codec,
                   storage::ec::Codec::make(options.data_shards, options.parity_shards));
  std::mt19937 random(2);
  Bytes block(options.block_bytes);
  for (std::byte& byte : block) byte = static_cast<std::byte>(random());
  Bytes copy(block.size());
  const auto copy_block = [&] { std::memcpy(copy.data(), block.data(), block.size()); };
  const storage::ShardHeader header{.key = {}, .generation = 1};
  // As in a client, shards live on while the next block is cut: the heap is not given back.
  std::vector<Bytes> shards;
  report({"cut and seal a block", "memcpy", block.size(),
          [&] { shards = storage::store::seal_block(*codec, header, block); }, copy_block},
         options);
  for (int lost = 0; lost <= options.parity_shards; ++lost) {
    const auto open = [&] {
      storage::store::MemberMask from = 0;
      for (int i = lost; i < lost + options.data_shards; ++i) {
        storage::ShardHeader read;
        const auto index = static_cast<std::uint8_t>(i);
        CHECK(storage::verify_shard(shards[index], header.key, index, 1, read) ==
              storage::ShardDefect::kNone);
        from |= storage::store::MemberMask{1} << i;
      }
      storage::store::open_block(*codec, shards, from, copy);
    };
    report({str_cat("verify and open, ", lost, " lost"), "memcpy", block.size(), open, copy_block},
           options);
    CHECK(copy == block);
  }
  const std::span<const std::byte> bytes(block);
  report({"CRC-32C", "ISA-L", bytes.size(), [&] { CHECK(storage::ec::crc32c(bytes) != 1); },
          [&] {
            CHECK(crc32_iscsi(reinterpret_cast<unsigned char*>(block.data()),
                              static_cast<int>(block.size()), ~0U) != 1);
          }},
         options);
  return absl::OkStatus();
}

void bench_chain(const Options& options) {
  // A long prompt: 128 Ki tokens. Counted are bytes of token ids.
  std::vector<TokenId> tokens(std::size_t{1} << 17);
  std::mt19937 random(3);
  for (TokenId& token : tokens) token = static_cast<TokenId>(random() % 129280);
  const storage::BlockKey root = storage::kv::chain_root({.layout_id = "bench"});
  const std::span<const std::uint8_t> bytes(reinterpret_cast<const std::uint8_t*>(tokens.data()),
                                            tokens.size() * sizeof(TokenId));
  report({"chain keys of a prompt", "SHA-256 in one piece", bytes.size(),
          [&] { CHECK(storage::kv::chain_keys(root, tokens).size() == tokens.size() / 128); },
          [&] { CHECK(sha256(bytes)[0] + 1 != 0); }},
         options);
}

absl::Status run(const Options& options) {
  if (!options.json) {
    std::cout << "GB/s of one core, " << options.data_shards << "+" << options.parity_shards
              << ", blocks of " << options.block_bytes << " bytes\n"
              << std::left << std::setw(34) << "case" << std::right << std::setw(10) << "ours"
              << std::setw(10) << "bound" << std::setw(8) << "ratio"
              << "\n";
  }
  RETURN_IF_ERROR(bench_codec(options));
  RETURN_IF_ERROR(bench_blocks(options));
  bench_chain(options);
  return absl::OkStatus();
}

}  // namespace
}  // namespace millrace::tests::bench

int main(int argc, char** argv) {
  using namespace millrace;
  tests::bench::Options options;
  CLI::App app{"Measures erasure code, checksums and block names on one core"};
  app.add_option("--block-bytes", options.block_bytes, "Size of a KV block")
      ->capture_default_str()
      ->check(CLI::Range(std::size_t{1}, storage::kMaxBlockBytes));
  app.add_option("--data-shards", options.data_shards, "k")
      ->capture_default_str()
      ->check(CLI::Range(1, 30));
  app.add_option("--parity-shards", options.parity_shards, "m")
      ->capture_default_str()
      ->check(CLI::Range(1, 2));
  app.add_option("--seconds", options.seconds, "Time for each figure")->capture_default_str();
  app.add_flag("--json", options.json, "One JSON object a line");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = tests::bench::run(options);
  if (status.ok()) return 0;
  std::cerr << message_of(status) << "\n";
  return 1;
}
