#include "dataplane/cost/fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <optional>
#include <string_view>

#include "common/status_macros.h"
#include "common/str_cat.h"

namespace millrace::dataplane::cost {
namespace {

/// A sample is an outlier when its relative residual is farther from the median one than this many
/// times the median distance; 1.4826 of those are a standard deviation of normal noise.
constexpr double kOutlierDistances = 6;
/// ... and farther than this, so that samples that fit almost perfectly reject nothing.
constexpr double kOutlierFloor = 0.02;
constexpr int kMaxRounds = 8;
/// Smallest share of a column's square that may be left once the other columns are taken out of it.
constexpr double kIndependence = 1e-9;

/// One equation Σ terms · coefficient = 1: a sample divided by its time, so that the squares are of
/// relative errors.
template <std::size_t n>
using Row = std::array<double, n>;

template <std::size_t n>
using Matrix = std::array<std::array<double, n>, n>;

/// Solves the normal equations restricted to the terms in `mask` by Cholesky's method; nullopt when
/// those terms depend on each other.
template <std::size_t n>
std::optional<Row<n>> solve(const Matrix<n>& gram, const Row<n>& right, unsigned mask) {
  std::array<std::size_t, n> terms{};
  std::size_t count = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if ((mask >> i & 1U) != 0) terms[count++] = i;
  }
  Matrix<n> lower{};
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      double sum = gram[terms[i]][terms[j]];
      for (std::size_t k = 0; k < j; ++k) sum -= lower[i][k] * lower[j][k];
      if (i != j) {
        lower[i][j] = sum / lower[j][j];
      } else if (sum > kIndependence * gram[terms[i]][terms[i]]) {
        lower[i][i] = std::sqrt(sum);
      } else {
        return std::nullopt;
      }
    }
  }
  Row<n> middle{};
  for (std::size_t i = 0; i < count; ++i) {
    double sum = right[terms[i]];
    for (std::size_t k = 0; k < i; ++k) sum -= lower[i][k] * middle[k];
    middle[i] = sum / lower[i][i];
  }
  Row<n> result{};
  for (std::size_t i = count; i-- > 0;) {
    double sum = middle[i];
    for (std::size_t k = i + 1; k < count; ++k) sum -= lower[k][i] * result[terms[k]];
    result[terms[i]] = sum / lower[i][i];
  }
  return result;
}

template <std::size_t n>
struct Solution {
  Row<n> coefficients{};
  unsigned mask = 0;  ///< the terms it was solved for
};

/// Non-negative least squares, exactly: with so few terms, every subset of them is solved, and the
/// best solution without a negative coefficient is the one.
template <std::size_t n>
Solution<n> non_negative_least_squares(std::span<const Row<n>> rows) {
  Row<n> scale{};
  for (const Row<n>& row : rows) {
    for (std::size_t i = 0; i < n; ++i) scale[i] = std::max(scale[i], row[i]);
  }
  Matrix<n> gram{};
  Row<n> right{};
  for (const Row<n>& row : rows) {
    for (std::size_t i = 0; i < n; ++i) {
      const double x = scale[i] > 0 ? row[i] / scale[i] : 0;
      right[i] += x;
      for (std::size_t j = 0; j < n; ++j) {
        gram[i][j] += x * (scale[j] > 0 ? row[j] / scale[j] : 0);
      }
    }
  }
  Solution<n> best;
  double best_gain = 0;  // how far the sum of squares falls below that of all zeros
  for (unsigned mask = 1; mask < (1U << n); ++mask) {
    const std::optional<Row<n>> candidate = solve<n>(gram, right, mask);
    if (!candidate || std::any_of(candidate->begin(), candidate->end(),
                                  [](double x) { return x < 0 || !std::isfinite(x); })) {
      continue;
    }
    // At a solution of the normal equations, |Ax|² = x·Aᵀ1: the gain is x·right.
    double gain = 0;
    for (std::size_t i = 0; i < n; ++i) gain += (*candidate)[i] * right[i];
    // A term more has to improve something: equal subsets resolve to the one with fewer terms,
    // which comes first among its supersets.
    if (gain <= best_gain + 1e-12 * static_cast<double>(rows.size())) continue;
    best_gain = gain;
    best = {*candidate, mask};
  }
  for (std::size_t i = 0; i < n; ++i) {
    if (scale[i] > 0) best.coefficients[i] /= scale[i];
  }
  return best;
}

template <std::size_t n>
double residual(const Row<n>& row, const Row<n>& coefficients) {
  double predicted = 0;
  for (std::size_t i = 0; i < n; ++i) predicted += row[i] * coefficients[i];
  return predicted - 1;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// The rows whose residual is like that of the others.
template <std::size_t n>
std::vector<Row<n>> without_outliers(std::span<const Row<n>> rows, const Row<n>& coefficients) {
  std::vector<double> residuals;
  residuals.reserve(rows.size());
  for (const Row<n>& row : rows) residuals.push_back(residual<n>(row, coefficients));
  const double centre = median(residuals);
  std::vector<double> distances;
  distances.reserve(rows.size());
  for (const double r : residuals) distances.push_back(std::abs(r - centre));
  const double limit = std::max(kOutlierDistances * median(distances), kOutlierFloor);
  std::vector<Row<n>> kept;
  kept.reserve(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (std::abs(residuals[i] - centre) <= limit) kept.push_back(rows[i]);
  }
  return kept;
}

template <std::size_t n>
struct RobustFit {
  Row<n> coefficients{};
  FitQuality quality;
};

template <std::size_t n>
RobustFit<n> fit(const std::vector<Row<n>>& all, const std::array<std::string_view, n>& names) {
  Solution<n> solution = non_negative_least_squares<n>(all);
  std::vector<Row<n>> used = all;
  for (int round = 0; round < kMaxRounds; ++round) {
    // Judged anew from all samples each time: what an early, bad model threw out may come back.
    std::vector<Row<n>> kept = without_outliers<n>(all, solution.coefficients);
    if (kept == used || kept.size() < kMinFitSamples) break;
    used = std::move(kept);
    solution = non_negative_least_squares<n>(used);
  }
  RobustFit<n> result{.coefficients = solution.coefficients, .quality = {}};
  result.quality.used = static_cast<int>(used.size());
  result.quality.rejected = static_cast<int>(all.size() - used.size());
  for (const Row<n>& row : used) {
    const double error = std::abs(residual<n>(row, solution.coefficients));
    result.quality.mean_relative_error += error / static_cast<double>(used.size());
    result.quality.worst_relative_error = std::max(result.quality.worst_relative_error, error);
  }
  for (std::size_t i = 0; i < n; ++i) {
    if ((solution.mask >> i & 1U) == 0) result.quality.left_out.emplace_back(names[i]);
  }
  return result;
}

/// The equation of a sample, or what is wrong with it.
template <std::size_t n>
absl::StatusOr<Row<n>> equation(std::size_t index, const Row<n>& terms,
                                const std::array<std::string_view, n>& names, double ns) {
  if (!std::isfinite(ns) || ns <= 0) {
    return absl::InvalidArgumentError(
        str_cat("sample ", index, ": took ", ns, " ns; a step takes a positive, finite time"));
  }
  Row<n> row{};
  for (std::size_t i = 0; i < n; ++i) {
    if (!std::isfinite(terms[i]) || terms[i] < 0) {
      return absl::InvalidArgumentError(str_cat("sample ", index, ": the term of ", names[i],
                                                " is ", terms[i],
                                                "; it must be finite and at least 0"));
    }
    row[i] = terms[i] / ns;
  }
  return row;
}

// In the order in which terms are preferred where samples cannot tell them apart: a model that must
// guess beyond its samples guesses in proportion to rows, not to their square.
constexpr std::array<std::string_view, 6> kPrefillTerms = {"linear",     "fixed", "tail",
                                                           "tail_cross", "cross", "quadratic"};
Row<6> terms_of(const PrefillSample& s) {
  return {s.rows, s.chunks, s.tail, s.tail_by_length, s.rows_by_cached, s.rows_squared};
}
Row<6> coefficients_of(const CostModel& m) {
  return {m.linear, m.fixed, m.tail, m.tail_cross, m.cross, m.quadratic};
}
Row<3> terms_of(const DecodeSample& s) { return {1, s.batch, s.kv_tokens}; }
Row<3> coefficients_of(const DecodeCostModel& m) {
  return {m.fixed, m.per_request, m.per_kv_token};
}

template <typename Model, typename Sample>
double predict(const Model& model, const Sample& sample) {
  const auto terms = terms_of(sample);
  const auto coefficients = coefficients_of(model);
  return std::inner_product(terms.begin(), terms.end(), coefficients.begin(), 0.0);
}

template <typename Model, typename Sample>
double mean_error(const Model& model, std::span<const Sample> samples) {
  double sum = 0;
  for (const Sample& sample : samples) {
    sum += std::abs(predict(model, sample) - sample.ns) / sample.ns;
  }
  return samples.empty() ? 0 : sum / static_cast<double>(samples.size());
}

template <std::size_t n, typename Sample>
absl::StatusOr<RobustFit<n>> fit_samples(std::span<const Sample> samples,
                                         const std::array<std::string_view, n>& names) {
  std::vector<Row<n>> rows;
  rows.reserve(samples.size());
  for (std::size_t i = 0; i < samples.size(); ++i) {
    ASSIGN_OR_RETURN(const Row<n> row, equation<n>(i, terms_of(samples[i]), names, samples[i].ns));
    rows.push_back(row);
  }
  if (rows.size() < kMinFitSamples) {
    return absl::FailedPreconditionError(
        str_cat(rows.size(), " samples; a fit needs at least ", kMinFitSamples));
  }
  return fit<n>(rows, names);
}

}  // namespace

void PrefillSample::add(const Chunk& chunk) {
  const auto q = static_cast<double>(chunk.rows);
  const auto c = static_cast<double>(chunk.cached);
  const auto t = static_cast<double>(chunk.tail);
  rows_squared += q * q;
  rows_by_cached += q * c;
  rows += q;
  chunks += 1;
  tail += t;
  tail_by_length += t * (c + q);
}

double predicted_ns(const CostModel& model, const PrefillSample& step) {
  return predict(model, step);
}

double predicted_ns(const DecodeCostModel& model, const DecodeSample& step) {
  return predict(model, step);
}

absl::StatusOr<PrefillFit> fit_prefill(std::span<const PrefillSample> samples) {
  ASSIGN_OR_RETURN(const RobustFit<6> fitted, fit_samples<6>(samples, kPrefillTerms));
  const auto& [linear, fixed, tail, tail_cross, cross, quadratic] = fitted.coefficients;
  PrefillFit result{{.quadratic = quadratic,
                     .cross = cross,
                     .linear = linear,
                     .fixed = fixed,
                     .tail = tail,
                     .tail_cross = tail_cross},
                    fitted.quality};
  RETURN_IF_ERROR(check(result.model));
  return result;
}

absl::StatusOr<DecodeFit> fit_decode(std::span<const DecodeSample> samples) {
  ASSIGN_OR_RETURN(const RobustFit<3> fitted,
                   fit_samples<3>(samples, {"fixed", "per_request", "per_kv_token"}));
  const auto& [fixed, per_request, per_kv_token] = fitted.coefficients;
  DecodeFit result{{fixed, per_request, per_kv_token}, fitted.quality};
  RETURN_IF_ERROR(check(result.model));
  return result;
}

double mean_relative_error(const CostModel& model, std::span<const PrefillSample> samples) {
  return mean_error(model, samples);
}

double mean_relative_error(const DecodeCostModel& model, std::span<const DecodeSample> samples) {
  return mean_error(model, samples);
}

}  // namespace millrace::dataplane::cost
