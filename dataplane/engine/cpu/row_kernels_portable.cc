#include <span>

#include "dataplane/engine/cpu/lane_sum.h"
#include "dataplane/engine/cpu/row_kernels.h"
#include "dataplane/engine/cpu/row_loops.h"
#include "dataplane/model/number_formats.h"

namespace millrace::dataplane::engine::cpu {
namespace {

float dot(const float* x, const float* y, int count) {
  LaneSum sum;
  for (std::size_t k = 0; k < at(count, 1); ++k) sum.add(k, x[k], y[k]);
  return sum.total();
}

void rms_norm(const RmsNormRow& r) {
  row_loops::scale_row(r, dot(r.x, r.x, r.width) / static_cast<float>(r.width));
}

void collapse(const CollapseRow& r) { row_loops::collapse(r); }
void expand(const ExpandRow& r) { row_loops::expand(r); }
void rope(const RopeRow& r) { row_loops::rope(r); }
void swiglu(const SwigluRow& r) { row_loops::swiglu(r); }
float softmax(float* scores, int count, float scale, float sink) {
  return row_loops::softmax(scores, count, scale, sink);
}

void round_q8(float* x, int width) { model::round_q8({x, at(width, 1)}); }

void unpack_q4(const Q4Row& r) {
  const std::span<float> out(r.out, at(r.width, 1));
  if (r.kind == Q4Kind::kQ4g) {
    model::unpack_q4g(r.codes, r.scales, out);
  } else {
    model::unpack_q4i(r.codes, r.scales, out);
  }
}

constexpr RowKernels kPortable{.dot = dot,
                               .rms_norm = rms_norm,
                               .collapse = collapse,
                               .expand = expand,
                               .rope = rope,
                               .swiglu = swiglu,
                               .softmax = softmax,
                               .round_q8 = round_q8,
                               .unpack_q4 = unpack_q4};

}  // namespace

const RowKernels& portable_row_kernels() { return kPortable; }

}  // namespace millrace::dataplane::engine::cpu
