#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace millrace::controller::placement {

/// For each row the column it is assigned, one to one, so that the sum of costs is the smallest.
///
/// costs  [count, count] row-major, any sign, magnitudes below 2^40
///
/// The Hungarian method in its O(count^3) form by shortest augmenting paths (Kuhn 1955, Munkres
/// 1957, Jonker and Volgenant 1987). Equal inputs give equal answers.
std::vector<int> assign(std::span<const std::int64_t> costs, int count);

/// The sum of an assignment's costs.
std::int64_t cost_of(std::span<const std::int64_t> costs, std::span<const int> column_of_row);

}  // namespace millrace::controller::placement
