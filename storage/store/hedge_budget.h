#pragma once

#include <algorithm>

namespace millrace::storage::store {

/// How many reads may be helped by a twelfth shard: a token bucket that reads fill and hedges
/// empty, so that hedging cannot amplify an overload. Pure; one thread.
class HedgeBudget {
 public:
  /// `fraction` of reads in the long run; `burst` hedges at once.
  explicit HedgeBudget(double fraction, double burst = 10)
      : fraction_(fraction), burst_(burst), tokens_(burst) {}

  void on_read() { tokens_ = std::min(burst_, tokens_ + fraction_); }

  /// True: there was a token, and it is spent.
  bool take() {
    if (tokens_ < 1) return false;
    tokens_ -= 1;
    return true;
  }

  /// Pays for a hedge that could not be withheld: as far as there is something left.
  void charge() { tokens_ = std::max(0.0, tokens_ - 1); }

 private:
  double fraction_;
  double burst_;
  double tokens_;
};

}  // namespace millrace::storage::store
