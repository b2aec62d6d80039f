#pragma once

#include <cstdint>
#include <vector>

namespace millrace::sim {

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014): steps
/// draw some ten billion numbers.
class FastRandom {
 public:
  explicit FastRandom(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27U)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31U);
  }
  /// In [0, 1).
  double uniform() { return static_cast<double>(next() >> 11U) * 0x1p-53; }

 private:
  std::uint64_t state_;
};

/// How wanted each expert of a layer is, while that changes.
///
/// Each expert has a place x in a standard normal distribution, which wanders (an Ornstein-
/// Uhlenbeck process, so that the distribution stays what it is) and forgets where it was within
/// some `correlation_steps`. Its weight is Zipf's of its rank among the experts, taken as a
/// continuous number: (experts * P(X > x) + 1/2)^-exponent. So at any time the weights are about
/// shuffled Zipf, they change smoothly, and over time every expert is hot once.
class DriftingPopularity {
 public:
  DriftingPopularity(int expert_count, double zipf_exponent, double correlation_steps,
                     std::uint64_t seed);

  void advance(int steps);
  const std::vector<double>& weights() const { return weights_; }

 private:
  void weigh();
  double normal();

  const double exponent_;
  const double correlation_steps_;
  FastRandom random_;
  std::vector<double> place_;
  std::vector<double> weights_;
};

/// Draws the experts of tokens: `experts_per_token` different ones for each, one after the other in
/// proportion to the weights of those not drawn yet (exact but for the 23 bits that decide within a
/// cell of the alias table).
class TokenSampler {
 public:
  TokenSampler(int expert_count, int experts_per_token, std::uint64_t seed);

  void set_weights(const std::vector<double>& weights);
  /// Adds what `tokens` tokens draw to counts [expert].
  void draw(int tokens, std::uint32_t* counts);

 private:
  const int experts_per_token_;
  FastRandom random_;
  struct Cell {
    std::uint32_t threshold = 0;  ///< of 2^32
    std::uint32_t own = 0;
    std::uint32_t alias = 0;
  };
  std::vector<Cell> cells_;
};

}  // namespace millrace::sim
