#include "tests/sim/cluster/decode_fleet.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "common/check.h"

namespace millrace::sim {

DecodeFleet::DecodeFleet(const Settings& settings)
    : settings_(settings), ranks_(static_cast<std::size_t>(settings.ranks)) {
  const auto count = static_cast<std::size_t>(settings.instances) * ranks_;
  instances_.resize(static_cast<std::size_t>(settings.instances));
  batch_.resize(count);
  kv_.resize(count);
  joining_kv_.resize(count);
  slowness_.resize(count, 1.0);
}

void DecodeFleet::add(std::size_t rank, RequestIndex request, std::int64_t kv_tokens,
                      std::int64_t tokens) {
  CHECK(tokens > 0);
  Instance& instance = instances_[instance_of(rank)];
  instance.joining.push_back(
      {{tokens, request, static_cast<std::uint32_t>(rank), kv_tokens + tokens}, kv_tokens});
  joining_kv_[rank] += kv_tokens;
  ++running_;
}

std::optional<SimTime> DecodeFleet::begin_step(std::size_t index, SimTime now) {
  Instance& instance = instances_[index];
  if (instance.is_running) return std::nullopt;
  for (const Joining& joining : instance.joining) {
    Ending ending = joining.ending;
    ending.step += instance.step;
    batch_[ending.rank] += 1;
    kv_[ending.rank] += joining.kv_tokens;
    joining_kv_[ending.rank] -= joining.kv_tokens;
    instance.endings.push_back(ending);
    std::push_heap(instance.endings.begin(), instance.endings.end(), std::greater<>());
    ++instance.requests;
  }
  instance.joining.clear();
  if (instance.requests == 0) return std::nullopt;
  double slowest = 0;
  double sum = 0;
  for (std::size_t rank = index * ranks_; rank < (index + 1) * ranks_; ++rank) {
    if (batch_[rank] == 0) continue;
    const double cost = decode_step_ns(settings_.cost, batch_[rank], kv_[rank]) * slowness_[rank];
    slowest = std::max(slowest, cost);
    sum += cost;
  }
  instance.slowest_ns = slowest;
  instance.mean_ns = sum / static_cast<double>(ranks_);
  instance.is_running = true;
  return now + std::llround(std::max(slowest + settings_.step_overhead_ns, 1.0));
}

void DecodeFleet::end_step(std::size_t index, bool is_counted,
                           std::vector<std::pair<RequestIndex, std::size_t>>& finished) {
  Instance& instance = instances_[index];
  CHECK(instance.is_running);
  instance.is_running = false;
  ++instance.step;
  for (std::size_t rank = index * ranks_; rank < (index + 1) * ranks_; ++rank) {
    kv_[rank] += batch_[rank];
  }
  while (!instance.endings.empty() && instance.endings.front().step == instance.step) {
    std::pop_heap(instance.endings.begin(), instance.endings.end(), std::greater<>());
    const Ending ending = instance.endings.back();
    instance.endings.pop_back();
    batch_[ending.rank] -= 1;
    kv_[ending.rank] -= ending.kv_at_end;
    --instance.requests;
    --running_;
    finished.emplace_back(ending.request, ending.rank);
  }
  if (!is_counted) return;
  sums_.slowest_ns += instance.slowest_ns;
  sums_.mean_ns += instance.mean_ns;
  sums_.compute_ns += instance.mean_ns * static_cast<double>(ranks_);
  ++sums_.steps;
}

std::vector<std::pair<RequestIndex, std::int64_t>> DecodeFleet::clear(std::size_t index) {
  Instance& instance = instances_[index];
  std::vector<std::pair<RequestIndex, std::int64_t>> dropped;
  for (const Ending& ending : instance.endings) {
    dropped.emplace_back(ending.request, ending.step - instance.step);
  }
  for (const Joining& joining : instance.joining) {
    dropped.emplace_back(joining.ending.request, joining.ending.step);
  }
  std::sort(dropped.begin(), dropped.end());
  for (std::size_t rank = index * ranks_; rank < (index + 1) * ranks_; ++rank) {
    batch_[rank] = 0;
    kv_[rank] = 0;
    joining_kv_[rank] = 0;
  }
  running_ -= static_cast<std::int64_t>(dropped.size());
  instance = {};
  return dropped;
}

}  // namespace millrace::sim
