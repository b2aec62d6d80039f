// Every backend of ops.h against slow, obvious arithmetic in double precision.
#include "dataplane/engine/ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "dataplane/engine/cpu/cpu_ops.h"
#include "dataplane/engine/cpu/kernels.h"
#include "dataplane/engine/test_values.h"
#include "dataplane/kv/block_pool.h"
#include "dataplane/model/number_formats.h"
#include "dataplane/model/random_checkpoint.h"

namespace millrace::dataplane::engine {
namespace {

/// A backend under test; CUDA joins here.
struct Backend {
  const char* name;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Stream> stream;
};

std::vector<Backend> backends() {
  std::vector<Backend> list;
  const auto add = [&](const char* name, const cpu::Kernels& kernels, int threads) {
    list.push_back({name, std::make_unique<cpu::CpuOps>(kernels, threads),
                    std::make_unique<cpu::CpuStream>()});
  };
  add("portable", cpu::portable_kernels(), 1);
  add("portable, 3 threads", cpu::portable_kernels(), 3);
  if (cpu::avx512_kernels() != nullptr) {
    add("avx512", *cpu::avx512_kernels(), 1);
    add("avx512, 2 threads", *cpu::avx512_kernels(), 2);
  }
  return list;
}

WeightMatrix float_matrix(const float* values, int outputs, int inputs) {
  return {.format = WeightFormat::kFloat32,
          .outputs = outputs,
          .inputs = inputs,
          .codes = reinterpret_cast<const std::uint8_t*>(values)};
}

TEST(Ops, MatmulIsTheProductForEveryBatchSizeWithEqualBits) {
  const int inputs = 96, outputs = 37, most = 64;
  const auto x = random_values(size(most * inputs), 1);
  const auto w = random_values(size(outputs * inputs), 2);
  for (Backend& backend : backends()) {
    SCOPED_TRACE(backend.name);
    const auto run = [&](int rows, int first) {
      std::vector<float> y(size(rows * outputs));
      backend.ops->matmul(*backend.stream, {.rows = rows,
                                            .x = x.data() + size(first * inputs),
                                            .x_stride = inputs,
                                            .weight = float_matrix(w.data(), outputs, inputs),
                                            .outputs = outputs,
                                            .rounding = Rounding::kNone,
                                            .out = y.data(),
                                            .out_stride = outputs});
      return y;
    };
    const std::vector<float> all = run(most, 0);
    for (int row = 0; row < most; ++row) {
      for (int o = 0; o < outputs; ++o) {
        double sum = 0;
        for (int k = 0; k < inputs; ++k)
          sum += double{x[size(row * inputs + k)]} * double{w[size(o * inputs + k)]};
        ASSERT_NEAR(all[size(row * outputs + o)], sum, 1e-5);
      }
    }
    for (int rows = 1; rows <= most; ++rows) {
      const std::vector<float> part = run(rows, most - rows);
      ASSERT_EQ(0, std::memcmp(part.data(), all.data() + size((most - rows) * outputs),
                               part.size() * sizeof(float)))
          << rows;
    }
  }
}

TEST(Ops, RmsNormDividesByTheRootMeanSquare) {
  const int rows = 3, width = 50;
  const auto x = random_values(size(rows * width), 1, 4.0f);
  const auto weight = random_values(size(width), 2);
  for (Backend& backend : backends()) {
    SCOPED_TRACE(backend.name);
    std::vector<float> out(x.size());
    backend.ops->rms_norm(*backend.stream, {.rows = rows,
                                            .width = width,
                                            .x = x.data(),
                                            .weight = weight.data(),
                                            .eps = 1e-20f,
                                            .rounding = Rounding::kNone,
                                            .out = out.data()});
    for (int row = 0; row < rows; ++row) {
      double square = 0;
      for (int c = 0; c < width; ++c) square += std::pow(double{x[size(row * width + c)]}, 2);
      for (int c = 0; c < width; ++c) {
        const double expected =
            double{weight[size(c)]} * double{x[size(row * width + c)]} / std::sqrt(square / width);
        EXPECT_NEAR(out[size(row * width + c)], expected, 1e-6);
      }
    }
  }
}

TEST(Ops, RopeTurnsAdjacentPairsOfTheLastChannels) {
  const int rows = 2, heads = 2, width = 10, pairs = 3;
  const std::vector<std::int32_t> position = {5, 70000};
  const std::vector<float> frequency = {1.0f, 0.1f, 1e-4f};
  const auto x = random_values(size(rows * heads * width), 1);
  for (Backend& backend : backends()) {
    SCOPED_TRACE(backend.name);
    std::vector<float> cosine(size(rows * pairs)), sine(cosine.size());
    backend.ops->rope_table(*backend.stream, {.rows = rows,
                                              .pairs = pairs,
                                              .position = position.data(),
                                              .frequency = frequency.data(),
                                              .cosine = cosine.data(),
                                              .sine = sine.data()});
    std::vector<float> out = x;
    RopeArgs args{.direction = RopeDirection::kForward,
                  .rows = rows,
                  .heads = heads,
                  .width = width,
                  .pairs = pairs,
                  .cosine = cosine.data(),
                  .sine = sine.data(),
                  .rounding = Rounding::kNone,
                  .x = out.data()};
    backend.ops->rope(*backend.stream, args);
    for (int row = 0; row < rows; ++row) {
      for (int head = 0; head < heads; ++head) {
        const std::size_t at = size((row * heads + head) * width);
        for (std::size_t c = 0; c < 4; ++c) EXPECT_EQ(out[at + c], x[at + c]);
        for (std::size_t i = 0; i < 3; ++i) {
          const double angle = double{static_cast<float>(position[size(row)]) * frequency[i]};
          const double even = double{x[at + 4 + 2 * i]}, odd = double{x[at + 5 + 2 * i]};
          EXPECT_NEAR(out[at + 4 + 2 * i], even * std::cos(angle) - odd * std::sin(angle), 1e-6);
          EXPECT_NEAR(out[at + 5 + 2 * i], even * std::sin(angle) + odd * std::cos(angle), 1e-6);
        }
      }
    }
    args.direction = RopeDirection::kInverse;
    backend.ops->rope(*backend.stream, args);
    for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(out[i], x[i], 1e-6);
  }
}

TEST(Ops, MixColumnsSumToOneAndExpandTakesColumns) {
  const int rows = 4, copies = 3, width = 32;
  const auto stream = random_values(size(rows * copies * width), 1);
  const auto fn = random_values(size((2 + copies) * copies * copies * width), 2, 0.3f);
  const auto base = random_values(size((2 + copies) * copies), 3);
  const std::vector<float> scale = {0.5f, 1.5f, 2.0f};
  for (Backend& backend : backends()) {
    SCOPED_TRACE(backend.name);
    std::vector<float> a(size(rows * copies)), p(a.size()), c(size(rows * copies * copies));
    backend.ops->mix(*backend.stream,
                     {.rows = rows,
                      .copies = copies,
                      .width = width,
                      .sinkhorn_rounds = 20,
                      .stream = stream.data(),
                      .fn = float_matrix(fn.data(), (2 + copies) * copies, copies * width),
                      .base = base.data(),
                      .scale = scale.data(),
                      .norm_eps = 1e-20f,
                      .hc_eps = 1e-6f,
                      .a = a.data(),
                      .p = p.data(),
                      .c = c.data()});
    for (int row = 0; row < rows; ++row) {
      const float* x = stream.data() + size(row * copies * width);
      double square = 0;
      for (int i = 0; i < copies * width; ++i) square += double{x[i]} * double{x[i]};
      const double factor = 1 / std::sqrt(square / (copies * width));
      for (int k = 0; k < copies; ++k) {
        double za = 0, zp = 0, column = 0;
        for (int i = 0; i < copies * width; ++i) {
          za += double{x[i]} * double{fn[size(k * copies * width + i)]};
          zp += double{x[i]} * double{fn[size((copies + k) * copies * width + i)]};
        }
        const double sa = 1 / (1 + std::exp(-(za * factor * 0.5 + double{base[size(k)]})));
        const double sp = 2 / (1 + std::exp(-(zp * factor * 1.5 + double{base[size(copies + k)]})));
        EXPECT_NEAR(a[size(row * copies + k)], sa + 1e-6, 1e-6);
        EXPECT_NEAR(p[size(row * copies + k)], sp, 2e-6);
        for (int j = 0; j < copies; ++j) column += double{c[size((row * copies + j) * copies + k)]};
        EXPECT_NEAR(column, 1.0, 1e-5);
      }
    }
    std::vector<float> next = stream;
    const auto y = random_values(size(rows * width), 4);
    backend.ops->expand(*backend.stream, {.rows = rows,
                                          .copies = copies,
                                          .width = width,
                                          .p = p.data(),
                                          .c = c.data(),
                                          .y = y.data(),
                                          .rounding = Rounding::kNone,
                                          .stream = next.data()});
    for (int row = 0; row < rows; ++row) {
      for (int k = 0; k < copies; ++k) {
        for (int i = 0; i < width; ++i) {
          double expected = double{p[size(row * copies + k)]} * double{y[size(row * width + i)]};
          for (int j = 0; j < copies; ++j) {
            expected += double{c[size((row * copies + j) * copies + k)]} *
                        double{stream[size((row * copies + j) * width + i)]};
          }
          EXPECT_NEAR(next[size((row * copies + k) * width + i)], expected, 1e-5);
        }
      }
    }
  }
}

/// One sequence of the tiny configuration, its index keys and entries written through the ops.
class SelectionTest : public testing::Test {
 protected:
  static constexpr int kLayer = 5;
  static constexpr int kEntries = 150;

  SelectionTest()
      : config_(*model::parse_model_config(model::tiny_config_json())),
        layout_(config_, kv::Encoding::kFloat32),
        pool_(*kv::BlockPool::create(4, layout_.block_bytes())),
        blocks_(*pool_->take(2)) {
    keys_ = random_values(size(kEntries * config_.index_head_dim), 1);
    // Equal keys give equal scores: ties are part of the test.
    std::copy_n(keys_.begin(), config_.index_head_dim, &keys_[size(9 * config_.index_head_dim)]);
    std::copy_n(keys_.begin(), config_.index_head_dim, &keys_[size(50 * config_.index_head_dim)]);
    for (int i = 0; i < kEntries; ++i) {
      position_.push_back(i);
      index_.push_back(i);
    }
    sequence_.assign(kEntries, 0);
    table_ = {blocks_[0].index(), blocks_[1].index()};
    q_ = random_values(size(kEntries * config_.index_n_heads * config_.index_head_dim), 2);
    weights_ = random_values(size(kEntries * config_.index_n_heads), 3);
  }

  StepRows rows() const {
    return {.rows = kEntries,
            .sequences = 1,
            .position = position_.data(),
            .sequence = sequence_.data(),
            .first_row = first_row_.data(),
            .slot = slot_.data(),
            .window_floor = slot_.data(),
            .block_table = table_.data(),
            .table_stride = 2};
  }
  KvPool pool() const {
    return {.base = pool_->base(),
            .block_bytes = layout_.block_bytes(),
            .encoding = kv::Encoding::kFloat32};
  }

  void write_keys(Backend& backend) {
    backend.ops->store_entries(
        *backend.stream,
        {.plane = PlaneKind::kIndexKeys,
         .rows = rows(),
         .entries = {.entries = kEntries, .last_row = index_.data(), .index = index_.data()},
         .source = &layout_.source(kLayer),
         .pool = pool(),
         .values = keys_.data()});
  }

  SelectArgs args(int top_k, CandidateRole role, int block_size, int top_blocks) {
    selected_.assign(size(kEntries * top_k), -7);
    selected_count_.assign(kEntries, -7);
    if (role != CandidateRole::kRestricted) {
      candidates_.assign(size(kEntries * top_blocks), -7);
      candidate_count_.assign(kEntries, -7);
    }
    return {.rows = rows(),
            .heads = config_.index_n_heads,
            .width = config_.index_head_dim,
            .top_k = top_k,
            .q = q_.data(),
            .weights = weights_.data(),
            .source = &layout_.source(kLayer),
            .pool = pool(),
            .role = role,
            .block_size = block_size,
            .top_blocks = top_blocks,
            .candidates = candidates_.data(),
            .candidate_count = candidate_count_.data(),
            .selected = selected_.data(),
            .selected_count = selected_count_.data()};
  }

  /// Scores of one row in float, by definition.
  std::vector<float> scores(Backend& backend, int row, int visible) {
    const int width = config_.index_head_dim;
    std::vector<float> result;
    for (int j = 0; j < visible; ++j) {
      float sum = 0;
      for (int h = 0; h < config_.index_n_heads; ++h) {
        float dot = 0;
        backend.ops->matmul(*backend.stream,
                            {.rows = 1,
                             .x = q_.data() + size((row * config_.index_n_heads + h) * width),
                             .x_stride = width,
                             .weight = float_matrix(keys_.data() + size(j * width), 1, width),
                             .outputs = 1,
                             .rounding = Rounding::kNone,
                             .out = &dot,
                             .out_stride = 1});
        sum += weights_[size(row * config_.index_n_heads + h)] * std::max(dot, 0.0f);
      }
      result.push_back(sum);
    }
    return result;
  }

  /// Indices by (score descending, index ascending).
  static std::vector<int> ranking(const std::vector<float>& scores) {
    std::vector<int> order(scores.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return scores[size(a)] > scores[size(b)]; });
    return order;
  }

  std::vector<int> selection(int row, int top_k) const {
    const auto first = selected_.begin() + std::ptrdiff_t{row} * top_k;
    return {first, first + selected_count_[size(row)]};
  }

  const model::ModelConfig config_;
  const kv::BlockLayout layout_;
  std::unique_ptr<kv::BlockPool> pool_;
  std::vector<kv::BlockHandle> blocks_;
  std::vector<std::int32_t> position_, sequence_, index_, table_;
  const std::vector<std::int32_t> first_row_ = {0, kEntries}, slot_ = {0};
  std::vector<float> keys_, q_, weights_;
  std::vector<std::int32_t> candidates_, candidate_count_, selected_, selected_count_;
};

TEST_F(SelectionTest, TakesTheBestVisibleEntriesTiesToTheLowerIndex) {
  for (Backend& backend : backends()) {
    SCOPED_TRACE(backend.name);
    write_keys(backend);
    for (const int top_k : {1, 6, 40, 200}) {
      backend.ops->select(*backend.stream, args(top_k, CandidateRole::kNone, 1, 1));
      for (int row = 0; row < kEntries; ++row) {
        std::vector<int> expected = ranking(scores(backend, row, row + 1));
        expected.resize(std::min(expected.size(), size(top_k)));
        std::sort(expected.begin(), expected.end());
        ASSERT_EQ(selection(row, top_k), expected) << "row " << row << " top " << top_k;
      }
    }
  }
}

TEST_F(SelectionTest, NegativeAndPositiveZeroTie) {
  // All products are negative or zero: every score is a zero of some sign.
  for (float& w : weights_) w = w < 0 ? -1.0f : 1.0f;
  std::fill(q_.begin(), q_.end(), 0.0f);
  for (Backend& backend : backends()) {
    write_keys(backend);
    backend.ops->select(*backend.stream, args(4, CandidateRole::kNone, 1, 1));
    EXPECT_EQ(selection(kEntries - 1, 4), (std::vector<int>{0, 1, 2, 3}));
  }
}

TEST_F(SelectionTest, CandidateBlocksKeepTheNewestAndRestrictLaterSelections) {
  const int block_size = 4, top_blocks = 5, top_k = 6;
  for (Backend& backend : backends()) {
    SCOPED_TRACE(backend.name);
    write_keys(backend);
    backend.ops->select(*backend.stream,
                        args(top_k, CandidateRole::kSource, block_size, top_blocks));
    std::vector<std::vector<int>> kept(kEntries);
    for (int row = 0; row < kEntries; ++row) {
      const std::vector<float> s = scores(backend, row, row + 1);
      std::vector<int> free = ranking(s);
      free.resize(std::min(free.size(), size(top_k)));
      std::sort(free.begin(), free.end());
      EXPECT_EQ(selection(row, top_k), free) << "the source itself is not restricted";
      const int blocks = row / block_size + 1;
      if (blocks <= top_blocks) {
        EXPECT_EQ(candidate_count_[size(row)], -1);
        for (int b = 0; b < blocks; ++b) kept[size(row)].push_back(b);
        continue;
      }
      std::vector<float> block_scores;
      for (int b = 0; b < blocks; ++b) {
        const auto first = s.begin() + std::ptrdiff_t{b} * block_size;
        block_scores.push_back(
            *std::max_element(first, s.begin() + std::min(row + 1, (b + 1) * block_size)));
      }
      block_scores.back() = std::numeric_limits<float>::infinity();
      std::vector<int> best = ranking(block_scores);
      best.resize(top_blocks);
      std::sort(best.begin(), best.end());
      const auto mine = candidates_.begin() + std::ptrdiff_t{row} * top_blocks;
      EXPECT_EQ(std::vector<int>(mine, mine + candidate_count_[size(row)]), best);
      kept[size(row)] = best;
    }
    backend.ops->select(*backend.stream,
                        args(top_k, CandidateRole::kRestricted, block_size, top_blocks));
    for (int row = 0; row < kEntries; ++row) {
      std::vector<float> s = scores(backend, row, row + 1);
      std::vector<int> expected;
      for (int j : ranking(s)) {
        const bool inside = std::find(kept[size(row)].begin(), kept[size(row)].end(),
                                      j / block_size) != kept[size(row)].end();
        if (inside && expected.size() < size(top_k)) expected.push_back(j);
      }
      std::sort(expected.begin(), expected.end());
      ASSERT_EQ(selection(row, top_k), expected) << row;
    }
  }
}

TEST(Ops, RouteTakesTheBestBiasedScoresAndWeighsByTheUnbiasedOnes) {
  const int rows = 5, experts = 9, top_k = 3;
  auto logits = random_values(size(rows * experts), 1, 4.0f);
  std::fill(logits.begin(), logits.begin() + experts, 0.5f);  // all tie: the lowest ids win
  auto bias = random_values(experts, 2, 0.5f);
  for (Backend& backend : backends()) {
    SCOPED_TRACE(backend.name);
    for (const bool biased : {false, true}) {
      if (!biased) std::fill(bias.begin(), bias.end(), 0.0f);
      std::vector<std::int32_t> ids(size(rows * top_k));
      std::vector<float> weights(ids.size());
      backend.ops->route(*backend.stream, {.rows = rows,
                                           .experts = experts,
                                           .top_k = top_k,
                                           .logits = logits.data(),
                                           .bias = bias.data(),
                                           .temperature = 0.5f,
                                           .scale = 1.5f,
                                           .ids = ids.data(),
                                           .weights = weights.data()});
      for (int row = 0; row < rows; ++row) {
        std::vector<double> score;
        score.reserve(size(experts));
        for (int e = 0; e < experts; ++e)
          score.push_back(
              std::sqrt(std::log1p(std::exp(double{logits[size(row * experts + e)]} / 0.5))));
        std::vector<int> order(experts);
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
          return score[size(a)] + double{bias[size(a)]} > score[size(b)] + double{bias[size(b)]};
        });
        order.resize(top_k);
        std::sort(order.begin(), order.end());
        double total = 0;
        for (int e : order) total += score[size(e)];
        for (int i = 0; i < top_k; ++i) {
          EXPECT_EQ(ids[size(row * top_k + i)], order[size(i)]);
          EXPECT_NEAR(weights[size(row * top_k + i)], score[size(order[size(i)])] / total * 1.5,
                      1e-6);
        }
      }
      bias = random_values(experts, 2, 0.5f);
    }
  }
}

TEST(Ops, SwigluClampsBothFactors) {
  const std::vector<float> g = {-20.0f, 1.0f, 12.0f, 3.0f}, u = {2.0f, -15.0f, 11.0f, 0.5f};
  for (Backend& backend : backends()) {
    for (const float limit : {10.0f, 0.0f}) {
      std::vector<float> out(4);
      const std::vector<float> weight = {0.5f};
      backend.ops->swiglu(*backend.stream, {.rows = 1,
                                            .width = 4,
                                            .g = g.data(),
                                            .u = u.data(),
                                            .weights = weight.data(),
                                            .limit = limit,
                                            .rounding = Rounding::kNone,
                                            .out = out.data()});
      for (std::size_t i = 0; i < 4; ++i) {
        double gi = double{g[i]}, ui = double{u[i]};
        if (limit > 0) {
          gi = std::min(gi, 10.0);
          ui = std::clamp(ui, -10.0, 10.0);
        }
        EXPECT_NEAR(out[i], gi / (1 + std::exp(-gi)) * ui * 0.5, 1e-5);
      }
    }
  }
}

TEST(Ops, RoutedExpertsEqualASumOverEachRowsExperts) {
  const int rows = 7, width = 32, inner = 32, experts = 5, top_k = 2;
  const auto x = random_values(size(rows * width), 1);
  std::vector<std::vector<float>> w;
  std::vector<ExpertWeights> table;
  for (unsigned e = 0; e < 5; ++e) {
    for (unsigned i = 0; i < 3; ++i)
      w.push_back(random_values(size(width * inner), 10 + 3 * e + i, 0.3f));
  }
  for (std::size_t e = 0; e < 5; ++e)
    table.push_back({.w1 = float_matrix(w[3 * e].data(), inner, width),
                     .w2 = float_matrix(w[3 * e + 1].data(), width, inner),
                     .w3 = float_matrix(w[3 * e + 2].data(), inner, width)});
  const std::vector<std::int32_t> ids = {0, 1, 1, 4, 0, 4, 2, 3, 0, 2, 1, 2, 3, 4};
  const auto weights = random_values(ids.size(), 3);
  for (Backend& backend : backends()) {
    SCOPED_TRACE(backend.name);
    std::vector<float> out(x.size());
    backend.ops->routed_experts(*backend.stream, {.rows = rows,
                                                  .width = width,
                                                  .inner = inner,
                                                  .experts = experts,
                                                  .top_k = top_k,
                                                  .x = x.data(),
                                                  .ids = ids.data(),
                                                  .weights = weights.data(),
                                                  .table = table.data(),
                                                  .limit = 10,
                                                  .rounding = Rounding::kNone,
                                                  .out = out.data()});
    for (int row = 0; row < rows; ++row) {
      std::vector<double> sum(size(width), 0.0);
      for (int k = 0; k < top_k; ++k) {
        const auto e = size(ids[size(row * top_k + k)]);
        std::vector<double> y(size(inner));
        for (int i = 0; i < inner; ++i) {
          double g = 0, u = 0;
          for (int c = 0; c < width; ++c) {
            g += double{x[size(row * width + c)]} * double{w[3 * e][size(i * width + c)]};
            u += double{x[size(row * width + c)]} * double{w[3 * e + 2][size(i * width + c)]};
          }
          y[size(i)] = g / (1 + std::exp(-g)) * u * double{weights[size(row * top_k + k)]};
        }
        for (int c = 0; c < width; ++c) {
          for (int i = 0; i < inner; ++i)
            sum[size(c)] += y[size(i)] * double{w[3 * e + 1][size(c * inner + i)]};
        }
      }
      for (int c = 0; c < width; ++c) EXPECT_NEAR(out[size(row * width + c)], sum[size(c)], 1e-5);
    }
  }
}

}  // namespace
}  // namespace millrace::dataplane::engine
