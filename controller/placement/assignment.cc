#include "controller/placement/assignment.h"

#include <cstddef>
#include <limits>

#include "common/check.h"

namespace millrace::controller::placement {

// Rows and columns count from 1 below; 0 stands for "none", as usual in this formulation.
std::vector<int> assign(std::span<const std::int64_t> costs, int count) {
  const auto n = static_cast<std::size_t>(count);
  CHECK(count >= 0 && costs.size() == n * n);
  constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max() / 4;
  std::vector<std::int64_t> row_price(n + 1, 0);
  std::vector<std::int64_t> column_price(n + 1, 0);
  std::vector<std::size_t> row_of(n + 1, 0);
  std::vector<std::size_t> came_from(n + 1, 0);
  for (std::size_t row = 1; row <= n; ++row) {
    std::vector<std::int64_t> distance(n + 1, kFar);
    std::vector<char> is_done(n + 1, 0);
    std::size_t column = 0;
    row_of[0] = row;
    // Shortest path from the new row to a free column.
    while (row_of[column] != 0) {
      is_done[column] = 1;
      const std::size_t from = row_of[column];
      std::int64_t step = kFar;
      std::size_t next = 0;
      for (std::size_t c = 1; c <= n; ++c) {
        if (is_done[c] != 0) continue;
        const std::int64_t reduced =
            costs[(from - 1) * n + c - 1] - row_price[from] - column_price[c];
        if (reduced < distance[c]) {
          distance[c] = reduced;
          came_from[c] = column;
        }
        if (distance[c] < step) {
          step = distance[c];
          next = c;
        }
      }
      for (std::size_t c = 0; c <= n; ++c) {
        if (is_done[c] != 0) {
          row_price[row_of[c]] += step;
          column_price[c] -= step;
        } else {
          distance[c] -= step;
        }
      }
      column = next;
    }
    while (column != 0) {
      row_of[column] = row_of[came_from[column]];
      column = came_from[column];
    }
  }
  std::vector<int> column_of_row(n, 0);
  for (std::size_t c = 1; c <= n; ++c) column_of_row[row_of[c] - 1] = static_cast<int>(c) - 1;
  return column_of_row;
}

std::int64_t cost_of(std::span<const std::int64_t> costs, std::span<const int> column_of_row) {
  std::int64_t sum = 0;
  for (std::size_t row = 0; row < column_of_row.size(); ++row) {
    sum += costs[row * column_of_row.size() + static_cast<std::size_t>(column_of_row[row])];
  }
  return sum;
}

}  // namespace millrace::controller::placement
