#include "dataplane/model/engram_hash.h"

#include <algorithm>
#include <array>
#include <limits>
#include <set>

#include "common/check.h"

namespace millrace::dataplane::model {
namespace {

__extension__ using Uint128 = unsigned __int128;

std::uint64_t power_mod(std::uint64_t base, std::uint64_t exponent, std::uint64_t modulus) {
  std::uint64_t result = 1;
  for (base %= modulus; exponent > 0; exponent >>= 1) {
    if (exponent & 1) result = static_cast<std::uint64_t>(Uint128{result} * base % modulus);
    base = static_cast<std::uint64_t>(Uint128{base} * base % modulus);
  }
  return result;
}

/// Miller-Rabin with the first twelve primes as witnesses, which decides every 64-bit number.
/// Source: Sorenson, Webster, "Strong pseudoprimes to twelve prime bases", 2015.
bool is_prime(std::uint64_t n) {
  static constexpr std::array<std::uint64_t, 12> kWitnesses = {2,  3,  5,  7,  11, 13,
                                                               17, 19, 23, 29, 31, 37};
  if (n < 2) return false;
  for (std::uint64_t p : kWitnesses) {
    if (n % p == 0) return n == p;
  }
  std::uint64_t odd = n - 1;
  int twos = 0;
  for (; odd % 2 == 0; odd /= 2) ++twos;
  for (std::uint64_t witness : kWitnesses) {
    std::uint64_t x = power_mod(witness, odd, n);
    bool passes = x == 1 || x == n - 1;
    for (int i = 1; i < twos && !passes; ++i) {
      x = static_cast<std::uint64_t>(Uint128{x} * x % n);
      passes = x == n - 1;
    }
    if (!passes) return false;
  }
  return true;
}

/// NumPy's SeedSequence(entropy).generate_state(8, uint32) for one 32-bit word of entropy.
/// Source: numpy/random/bit_generator.pyx (after M. O'Neill's seed_seq).
std::array<std::uint32_t, 8> seed_words(std::uint32_t entropy) {
  std::uint32_t hash_constant = 0x43b0d7e5;
  const auto hash = [&](std::uint32_t value) {
    value ^= hash_constant;
    hash_constant *= 0x931e8875;
    value *= hash_constant;
    return value ^ (value >> 16);
  };
  const auto mix = [](std::uint32_t x, std::uint32_t y) {
    const std::uint32_t value = 0xca01f9ddu * x - 0x4973f715u * y;
    return value ^ (value >> 16);
  };
  std::array<std::uint32_t, 4> pool;
  for (std::size_t i = 0; i < pool.size(); ++i) pool[i] = hash(i == 0 ? entropy : 0);
  for (std::size_t source = 0; source < pool.size(); ++source) {
    for (std::size_t target = 0; target < pool.size(); ++target) {
      if (source != target) pool[target] = mix(pool[target], hash(pool[source]));
    }
  }
  std::array<std::uint32_t, 8> words;
  std::uint32_t constant = 0x8b51f9dd;
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::uint32_t value = pool[i % pool.size()] ^ constant;
    constant *= 0x58f38ded;
    value *= constant;
    words[i] = value ^ (value >> 16);
  }
  return words;
}

/// PCG64 (XSL-RR 128/64), seeded the way NumPy seeds it.
class Pcg64 {
 public:
  explicit Pcg64(std::uint32_t seed) {
    const auto words = seed_words(seed);
    const auto wide = [&](std::size_t i) { return words[i] | std::uint64_t{words[i + 1]} << 32; };
    const Uint128 state = Uint128{wide(0)} << 64 | wide(2);
    increment_ = (Uint128{wide(4)} << 64 | wide(6)) << 1 | 1;
    state_ = 0;
    step();
    state_ += state;
    step();
  }

  std::uint64_t next() {
    step();
    const auto high = static_cast<std::uint64_t>(state_ >> 64);
    const std::uint64_t folded = high ^ static_cast<std::uint64_t>(state_);
    const unsigned turn = static_cast<unsigned>(high >> 58);
    return folded >> turn | folded << ((64 - turn) & 63);
  }

  /// Uniform in [0, bound), bound > 2^32 (below that NumPy draws 32-bit words instead).
  /// Source: Lemire, "Fast random integer generation in an interval", 2019.
  std::uint64_t below(std::uint64_t bound) {
    Uint128 product = Uint128{next()} * bound;
    if (static_cast<std::uint64_t>(product) < bound) {
      const std::uint64_t threshold = (0 - bound) % bound;
      while (static_cast<std::uint64_t>(product) < threshold) product = Uint128{next()} * bound;
    }
    return static_cast<std::uint64_t>(product >> 64);
  }

 private:
  void step() {
    constexpr Uint128 kMultiplier = Uint128{0x2360ED051FC65DA4} << 64 | 0x4385DF649FCCF645;
    state_ = state_ * kMultiplier + increment_;
  }

  Uint128 state_;
  Uint128 increment_;
};

}  // namespace

std::vector<std::vector<std::int64_t>> engram_primes(const ModelConfig& config) {
  std::set<std::int64_t> used;
  std::vector<std::vector<std::int64_t>> layers(config.engram_layer_ids.size());
  for (auto& primes : layers) {
    for (int size = 2; size <= config.engram_max_ngram_size; ++size) {
      std::int64_t candidate = config.engram_vocab_size - 1;
      for (int head = 0; head < config.engram_n_heads;) {
        ++candidate;
        if (!is_prime(static_cast<std::uint64_t>(candidate)) || !used.insert(candidate).second)
          continue;
        primes.push_back(candidate);
        ++head;
      }
    }
  }
  return layers;
}

std::vector<std::int64_t> engram_multipliers(int layer, int ngram_size, int compressed_vocab_size) {
  const std::int64_t bound = std::max<std::int64_t>(
      1, std::numeric_limits<std::int64_t>::max() / compressed_vocab_size / 2);
  CHECK(bound > std::int64_t{1} << 32, "the configuration bounds the vocabulary at 2^24");
  Pcg64 random(10007u * static_cast<std::uint32_t>(layer));
  std::vector<std::int64_t> multipliers;
  multipliers.reserve(static_cast<std::size_t>(ngram_size));
  for (int i = 0; i < ngram_size; ++i) {
    multipliers.push_back(
        2 * static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(bound))) + 1);
  }
  return multipliers;
}

EngramHash::EngramHash(const ModelConfig& config, int layer)
    : heads_(config.engram_n_heads),
      multipliers_(engram_multipliers(layer, config.engram_max_ngram_size,
                                      config.engram_compressed_vocab_size)) {
  const int index = config.engram_index(layer);
  CHECK(index >= 0);
  primes_ = engram_primes(config)[static_cast<std::size_t>(index)];
  std::int64_t offset = 0;
  for (std::int64_t prime : primes_) {
    offsets_.push_back(offset);
    offset += prime;
  }
}

void EngramHash::rows(std::span<const std::int32_t> lookback, std::span<std::int64_t> rows) const {
  CHECK(lookback.size() == multipliers_.size() && rows.size() == primes_.size());
  std::int64_t mixed = lookback[0] * multipliers_[0];
  std::size_t column = 0;
  for (std::size_t i = 1; i < multipliers_.size(); ++i) {
    mixed ^= lookback[i] * multipliers_[i];
    for (int head = 0; head < heads_; ++head, ++column) {
      rows[column] = mixed % primes_[column] + offsets_[column];
    }
  }
}

}  // namespace millrace::dataplane::model
