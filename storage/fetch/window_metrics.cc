#include "storage/fetch/window_metrics.h"

#include <string>
#include <vector>

namespace millrace::storage::fetch {
namespace {

std::vector<std::string> put_end_names() {
  std::vector<std::string> names;
  names.reserve(kWindowPutEnds);
  for (int i = 0; i < kWindowPutEnds; ++i) {
    names.emplace_back(window_put_end_name(static_cast<WindowPutEnd>(i)));
  }
  return names;
}

std::vector<std::string> miss_names() {
  std::vector<std::string> names;
  names.reserve(swa::kWindowMisses);
  for (int i = 0; i < swa::kWindowMisses; ++i) {
    names.emplace_back(swa::window_miss_name(static_cast<swa::WindowMiss>(i)));
  }
  return names;
}

void add(const Counter& counter, std::uint64_t now, std::uint64_t before) {
  if (now != before) counter.add(static_cast<double>(now - before));
}

}  // namespace

WindowMetrics::WindowMetrics(Registry& registry, std::uint32_t slot_count)
    : slot_count_(slot_count),
      puts_(registry.counter("millrace_swa_windows_total",
                             "Windows that engines put, by what became of them.",
                             {{"outcome", put_end_names()}})),
      hits_(registry.counter("millrace_swa_hits_total",
                             "Windows given to engines: from the pool, or read from another "
                             "machine.",
                             {{"source", {"local", "remote"}}})),
      misses_(registry.counter("millrace_swa_misses_total",
                               "Windows that engines asked for and did not get, by why.",
                               {{"reason", miss_names()}})),
      evictions_(
          registry.counter("millrace_swa_evictions_total", "Windows replaced before their time.")),
      expiries_(registry.counter("millrace_swa_expiries_total",
                                 "Windows dropped at the end of their "
                                 "time.")),
      leases_lost_(registry.counter("millrace_swa_leases_lost_total",
                                    "Windows taken back from an engine at the end of its lease.")),
      slots_(registry.gauge("millrace_swa_pool_slots",
                            "Slots for windows, by state; \"leased\" ones cannot be replaced.",
                            {{"state", {"free", "used", "leased"}}})),
      peer_reads_(
          registry.gauge("millrace_swa_peer_reads", "Windows being read from other machines.")) {}

void WindowMetrics::publish(const WindowCounters& now) {
  for (std::size_t i = 0; i < kWindowPutEnds; ++i) {
    add(puts_.with({window_put_end_name(static_cast<WindowPutEnd>(i))}), now.puts[i],
        last_.puts[i]);
  }
  add(hits_.with({"local"}), now.local_hits, last_.local_hits);
  add(hits_.with({"remote"}), now.remote_hits, last_.remote_hits);
  for (std::size_t i = 0; i < swa::kWindowMisses; ++i) {
    add(misses_.with({swa::window_miss_name(static_cast<swa::WindowMiss>(i))}), now.misses[i],
        last_.misses[i]);
  }
  add(evictions_, now.pool.evictions, last_.pool.evictions);
  add(expiries_, now.pool.expiries, last_.pool.expiries);
  add(leases_lost_, now.pool.leases_lost, last_.pool.leases_lost);
  slots_.with({"free"}).set(static_cast<double>(slot_count_ - now.pool.used_slots));
  slots_.with({"used"}).set(static_cast<double>(now.pool.used_slots - now.pool.leased_slots));
  slots_.with({"leased"}).set(static_cast<double>(now.pool.leased_slots));
  peer_reads_.set(static_cast<double>(now.peer_reads));
  last_ = now;
}

}  // namespace millrace::storage::fetch
