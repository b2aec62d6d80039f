#pragma once

#include <cstddef>
#include <memory>

#include "dataplane/engine/cpu/kernels.h"
#include "dataplane/engine/ops.h"

namespace millrace::dataplane::engine::cpu {

/// The calling thread as a stream: ops run at once.
class CpuStream : public Stream {
 public:
  void synchronize() override {}
  std::byte* workspace(std::size_t bytes) override;

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte[], Free> memory_;
  std::size_t bytes_ = 0;
};

/// Ops on the CPU. Grouped by source file: cpu_ops.cc (rows: norms, products, rotations),
/// stream_ops.cc (hyper-connections, Engram), entry_ops.cc (compressor, KV writes), select_ops.cc,
/// attention_ops.cc, expert_ops.cc.
class CpuOps : public Ops {
 public:
  explicit CpuOps(const Kernels& kernels) : kernels_(kernels) {}

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
  void select(Stream& stream, const SelectArgs& args) override;
  void attention(Stream& stream, const AttentionArgs& args) override;
  void route(Stream& stream, const RouteArgs& args) override;
  void swiglu(Stream& stream, const SwigluArgs& args) override;
  void routed_experts(Stream& stream, const RoutedExpertsArgs& args) override;
  void add(Stream& stream, const AddArgs& args) override;
  void gather_rows(Stream& stream, const GatherRowsArgs& args) override;

 private:
  /// Sum over channels in the order that all ops share.
  float dot(const float* x, const float* y, int count) const;

  const Kernels& kernels_;
};

}  // namespace millrace::dataplane::engine::cpu
