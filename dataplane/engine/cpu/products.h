#pragma once

#include <vector>

#include "dataplane/engine/cpu/kernels.h"
#include "dataplane/engine/cpu/scratch.h"
#include "dataplane/engine/cpu/thread_pool.h"

namespace millrace::dataplane::engine::cpu {

/// Matrix products on all threads, in parts that keep weights and rows in the caches. How a product
/// is cut decides its speed and nothing else (kernels.h).
class Products {
 public:
  Products(const Kernels& kernels, ThreadPool& pool)
      : kernels_(kernels), pool_(pool), decoded_(static_cast<std::size_t>(pool.threads())) {}

  /// The whole product, cut over outputs and, where these are few, over rows.
  void run(const PackedMatmulShape& shape);
  /// Makes room for the parts of products with so many inputs. Before the loop that runs them, on
  /// all threads: which thread meets which part is chance, and a step must not allocate by chance.
  void reserve(int inputs);
  /// The product on the thread that calls, which is number `thread` of the pool.
  void run_part(const PackedMatmulShape& shape, int thread);

  /// How many outputs one task of a loop over `outputs` takes, for a loop whose every output costs
  /// `work_per_output` multiply-adds: a multiple of 32, so that blocks of scales and of quantized
  /// activations stay whole.
  int chunk(int outputs, double work_per_output) const;

 private:
  const Kernels& kernels_;
  ThreadPool& pool_;
  std::vector<Scratch> decoded_;  ///< by thread
};

}  // namespace millrace::dataplane::engine::cpu
