#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "dataplane/engine/cpu/kernels.h"
#include "dataplane/engine/cpu/products.h"
#include "dataplane/engine/cpu/scratch.h"
#include "dataplane/engine/cpu/thread_pool.h"
#include "dataplane/engine/ops.h"

namespace millrace::dataplane::engine::cpu {

/// The calling thread as a stream: ops have done their work when they return.
class CpuStream : public Stream {
 public:
  void synchronize() override {}
  std::byte* workspace(std::size_t bytes) override { return scratch_.bytes(bytes); }

 private:
  Scratch scratch_;
};

/// Ops on the CPU. Grouped by source file: cpu_ops.cc (rows: norms, products, rotations),
/// stream_ops.cc (hyper-connections, Engram), entry_ops.cc (compressor, KV writes), select_ops.cc,
/// attention_ops.cc, expert_ops.cc. Long loops are shared out to `threads` threads, the caller
/// among them, over outputs, rows or experts that do not depend on each other: bits do not depend
/// on how many.
class CpuOps : public Ops {
 public:
  explicit CpuOps(const Kernels& kernels, int threads = 1)
      : kernels_(kernels),
        row_(kernels.rows()),
        pool_(threads),
        products_(kernels, pool_),
        scratch_(static_cast<std::size_t>(threads)) {}

  void embed(Stream& stream, const EmbedArgs& args) override;
  void engram_gather(Stream& stream, const EngramGatherArgs& args) override;
  void engram_apply(Stream& stream, const EngramApplyArgs& args) override;
  void rms_norm(Stream& stream, const RmsNormArgs& args) override;
  void matmul(Stream& stream, const MatmulArgs& args) override;
  void quantize(Stream& stream, const QuantizeArgs& args) override;
  void rope_table(Stream& stream, const RopeTableArgs& args) override;
  void rope(Stream& stream, const RopeArgs& args) override;
  void mix(Stream& stream, const MixArgs& args) override;
  void collapse(Stream& stream, const CollapseArgs& args) override;
  void expand(Stream& stream, const ExpandArgs& args) override;
  void compress(Stream& stream, const CompressArgs& args) override;
  void store_carry(Stream& stream, const StoreCarryArgs& args) override;
  void store_entries(Stream& stream, const StoreEntriesArgs& args) override;
  void store_window(Stream& stream, const StoreWindowArgs& args) override;
  void keep_window(Stream& stream, const KeepWindowArgs& args) override;
  void select(Stream& stream, const SelectArgs& args) override;
  void attention(Stream& stream, const AttentionArgs& args) override;
  void route(Stream& stream, const RouteArgs& args) override;
  void swiglu(Stream& stream, const SwigluArgs& args) override;
  void routed_experts(Stream& stream, const RoutedExpertsArgs& args) override;
  void add(Stream& stream, const AddArgs& args) override;
  void gather_rows(Stream& stream, const GatherRowsArgs& args) override;

 private:
  /// The pairs of a row and one of its experts, in order of experts (expert_ops.cc).
  struct ExpertPairs {
    float* x;             ///< [pairs, width]
    float* g;             ///< [pairs, inner]
    float* u;             ///< [pairs, inner]
    float* weight;        ///< [pairs]
    std::int32_t* row;    ///< [pairs]
    std::int32_t* first;  ///< [experts + 1] first pair of every expert
  };
  void collect_pairs(const RoutedExpertsArgs& args, const ExpertPairs& pairs);
  void inner_activations(const RoutedExpertsArgs& args, const ExpertPairs& pairs, int expert,
                         int first, int count, int thread);
  void sum_of_experts(const RoutedExpertsArgs& args, const ExpertPairs& pairs, int first, int count,
                      int thread);
  /// Calls visit(row, thread) for every row, on all threads when `work` multiply-adds a row are
  /// worth it.
  template <typename Visit>
  void for_rows(int rows, double work, Visit visit);
  /// Makes room on all threads before a loop that uses scratch(): see Products::reserve().
  void reserve_scratch(std::size_t bytes) {
    for (Scratch& scratch : scratch_) scratch.bytes(bytes);
  }
  Scratch& scratch(int thread) { return scratch_[static_cast<std::size_t>(thread)]; }

  const Kernels& kernels_;
  const RowKernels& row_;
  ThreadPool pool_;
  Products products_;
  std::vector<Scratch> scratch_;  ///< by thread, of ops that share out their loops
};

template <typename Visit>
void CpuOps::for_rows(int rows, double work, Visit visit) {
  constexpr double kTaskWork = 1 << 15;  // a few microseconds: this arithmetic is not a product's
  const int least = static_cast<int>(kTaskWork / (work + 1)) + 1;
  const int even = (rows + 4 * pool_.threads() - 1) / (4 * pool_.threads());
  const int rows_per_task = pool_.threads() == 1 ? rows : std::max(least, even);
  if (rows == 0) return;
  pool_.run((rows + rows_per_task - 1) / rows_per_task, [&](int task, int thread) {
    const int end = std::min(rows, (task + 1) * rows_per_task);
    for (int row = task * rows_per_task; row < end; ++row) visit(row, thread);
  });
}

}  // namespace millrace::dataplane::engine::cpu
