#pragma once

#include <span>
#include <vector>

namespace millrace::deploy::cli {

/// What a table says about many measurements of one thing.
struct Summary {
  int count = 0;
  double mean = 0;
  double p50 = 0;
  double p90 = 0;
  double p99 = 0;
  double max = 0;
};

/// The smallest value that at least `fraction` of the values do not exceed (nearest rank).
/// `sorted` ascends and is not empty; 0 < fraction <= 1.
double percentile(std::span<const double> sorted, double fraction);

/// Takes the values in any order; all zero when there are none.
Summary summarize(std::vector<double> values);

struct Interval {
  double low = 0;
  double high = 0;
};

/// The 95 % confidence interval of a share, after Wilson (J. Am. Stat. Assoc. 22, 1927): unlike the
/// textbook one it stays inside [0, 1] and means something at 0 of n and n of n. [0, 1] when total
/// is 0.
Interval wilson_interval(int successes, int total);

}  // namespace millrace::deploy::cli
