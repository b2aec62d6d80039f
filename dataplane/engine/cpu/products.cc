#include "dataplane/engine/cpu/products.h"

#include <algorithm>

#include "dataplane/engine/cpu/indexing.h"

namespace millrace::dataplane::engine::cpu {
namespace {

/// Up to here every row decodes the weights anew, in registers.
constexpr int kDirectRows = 6;
/// Decoded weights of a panel: they share the second-level cache with the rows.
constexpr int kPanelFloats = 48 * 1024;
constexpr int kOutputStep = 32;
constexpr int kRowStep = 48;
/// A task below this is not worth waking a thread for: about two microseconds.
constexpr double kTaskWork = 1 << 17;
/// Decoding costs as much as this many rows.
constexpr int kDecodeRows = 4;
constexpr int kTasksPerThread = 4;

int divide_up(int a, int b) { return (a + b - 1) / b; }

int panel_outputs(int inputs) { return std::clamp(kPanelFloats / inputs / 4 * 4, 4, 64); }

PackedMatmulShape part_of(const PackedMatmulShape& whole, int first_row, int rows, int first_output,
                          int outputs) {
  PackedMatmulShape part = whole;
  part.x += static_cast<std::size_t>(first_row) * whole.x_stride;
  part.rows = rows;
  part.first_output += first_output;
  part.outputs = outputs;
  part.y += static_cast<std::size_t>(first_row) * whole.y_stride + at(first_output, 1);
  return part;
}

}  // namespace

int Products::chunk(int outputs, double work_per_output) const {
  const int wanted = pool_.threads() == 1
                         ? 1
                         : static_cast<int>(std::min<double>(outputs * work_per_output / kTaskWork,
                                                             pool_.threads() * kTasksPerThread));
  const int even = divide_up(outputs, std::max(wanted, 1));
  return divide_up(even, kOutputStep) * kOutputStep;
}

void Products::reserve(int inputs) {
  for (Scratch& scratch : decoded_) scratch.floats(at(panel_outputs(inputs), inputs));
}

void Products::run(const PackedMatmulShape& s) {
  if (s.rows == 0) return;
  reserve(s.weight->inputs);
  const double work_per_output = double{1} * std::max(s.rows, kDecodeRows) * s.weight->inputs;
  const int outputs = chunk(s.outputs, work_per_output);
  const int output_chunks = divide_up(s.outputs, outputs);
  int rows = s.rows;
  if (output_chunks < 2 * pool_.threads() && outputs * work_per_output > 2 * kTaskWork) {
    // Few outputs: every task decodes them for its own rows.
    rows = std::min(s.rows, kRowStep);
  }
  const int row_chunks = divide_up(s.rows, rows);
  pool_.run(output_chunks * row_chunks, [&](int task, int thread) {
    const int first_output = task / row_chunks * outputs;
    const int first_row = task % row_chunks * rows;
    run_part(part_of(s, first_row, std::min(rows, s.rows - first_row), first_output,
                     std::min(outputs, s.outputs - first_output)),
             thread);
  });
}

void Products::run_part(const PackedMatmulShape& s, int thread) {
  if (s.rows <= kDirectRows) return kernels_.packed_matmul(s);
  const int inputs = s.weight->inputs;
  const int panel = panel_outputs(inputs);
  Scratch& scratch = decoded_[static_cast<std::size_t>(thread)];
  for (int first = 0; first < s.outputs; first += panel) {
    const int outputs = std::min(panel, s.outputs - first);
    // Float32 too: stored weights have any alignment, a copy has the right one.
    float* w = scratch.floats(at(outputs, inputs));
    kernels_.decode(*s.weight, s.first_output + first, outputs, w);
    kernels_.matmul({.x = s.x,
                     .x_stride = s.x_stride,
                     .rows = s.rows,
                     .w = w,
                     .w_stride = at(1, inputs),
                     .outputs = outputs,
                     .inputs = inputs,
                     .rounding = s.rounding,
                     .y = s.y + first,
                     .y_stride = s.y_stride});
  }
}

}  // namespace millrace::dataplane::engine::cpu
