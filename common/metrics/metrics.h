#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
}  // namespace prometheus

namespace millrace {

/// The handles below are small values that point into their Registry, which must outlive them. All
/// their functions may be called from any thread.

/// Only grows.
class Counter {
 public:
  explicit Counter(prometheus::Counter& counter) : counter_(&counter) {}
  void add(double amount = 1.0) const;
  double value() const;

 private:
  prometheus::Counter* counter_;
};

/// Goes up and down.
class Gauge {
 public:
  explicit Gauge(prometheus::Gauge& gauge) : gauge_(&gauge) {}
  void set(double value) const;
  void add(double amount) const;
  double value() const;

 private:
  prometheus::Gauge* gauge_;
};

/// Counts observations in buckets.
class Histogram {
 public:
  explicit Histogram(prometheus::Histogram& histogram) : histogram_(&histogram) {}
  void observe(double value) const;

 private:
  prometheus::Histogram* histogram_;
};

/// A label and every value it can take. Closed: never a request id.
struct LabelSet {
  std::string name;
  std::vector<std::string> values;
};

/// One metric per combination of label values. All of them exist, and are exposed as zero, from the
/// start.
template <typename Metric>
class MetricFamily {
 public:
  /// The metric with these label values, in the order of the labels. A value outside its set is a
  /// bug (CHECK).
  const Metric& with(const std::vector<std::string_view>& values) const;

 private:
  friend class Registry;
  std::vector<LabelSet> labels_;
  std::vector<Metric> metrics_;  // row-major over the label values
};

/// Default buckets, seconds: 1 ms to 60 s, about three a decade.
std::vector<double> latency_buckets_seconds();
/// 1, 2, 4 ... up to and including the first power of two that is at least `largest`.
std::vector<double> power_of_two_buckets(double largest);

/// All metrics of a process. Names are `millrace_*` in base units (`_seconds`, `_bytes`, `_total`
/// for counters); another name, or the same name twice, is a bug (CHECK). Built by main and passed
/// down; metrics are made at the start and used from any thread.
class Registry {
 public:
  Registry();
  ~Registry();
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  Counter counter(std::string_view name, std::string_view help);
  Gauge gauge(std::string_view name, std::string_view help);
  Histogram histogram(std::string_view name, std::string_view help,
                      const std::vector<double>& buckets);

  MetricFamily<Counter> counter(std::string_view name, std::string_view help,
                                std::vector<LabelSet> labels);
  MetricFamily<Gauge> gauge(std::string_view name, std::string_view help,
                            std::vector<LabelSet> labels);
  MetricFamily<Histogram> histogram(std::string_view name, std::string_view help,
                                    std::vector<LabelSet> labels,
                                    const std::vector<double>& buckets);

  /// Everything in Prometheus' text exposition format 0.0.4. Serve it as
  /// "text/plain; version=0.0.4; charset=utf-8".
  std::string exposition() const;

 private:
  friend class MetricsServer;
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

/// Serves GET /metrics on its own small listener, for processes that have no HTTP server.
class MetricsServer {
 public:
  /// `address` is host:port with a numeric IPv4 host; port 0 picks a free one. The registry must
  /// outlive the server. kUnavailable names the address when it cannot be had.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> start(const std::string& address,
                                                              const Registry& registry);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  /// host:port it listens on.
  const std::string& address() const { return address_; }

 private:
  struct Impl;
  MetricsServer(std::unique_ptr<Impl> impl, std::string address);
  std::unique_ptr<Impl> impl_;
  std::string address_;
};

}  // namespace millrace
