#include "common/metrics/metrics.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <prometheus/counter.h>
#include <prometheus/exposer.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <exception>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "common/check.h"
#include "common/str_cat.h"

namespace millrace {
namespace {

using LabelMap = std::map<std::string, std::string>;

/// Every combination of label values, the last label running fastest.
std::vector<LabelMap> combinations(const std::vector<LabelSet>& labels) {
  std::vector<LabelMap> result(1);
  for (const LabelSet& label : labels) {
    CHECK(!label.values.empty(), "a label needs at least one value");
    std::vector<LabelMap> longer;
    for (const LabelMap& base : result) {
      for (const std::string& value : label.values) {
        LabelMap next = base;
        next[label.name] = value;
        longer.push_back(std::move(next));
      }
    }
    result = std::move(longer);
  }
  return result;
}

}  // namespace

void Counter::add(double amount) const { counter_->Increment(amount); }
double Counter::value() const { return counter_->Value(); }
void Gauge::set(double value) const { gauge_->Set(value); }
void Gauge::add(double amount) const { gauge_->Increment(amount); }
double Gauge::value() const { return gauge_->Value(); }
void Histogram::observe(double value) const { histogram_->Observe(value); }

template <typename Metric>
const Metric& MetricFamily<Metric>::with(const std::vector<std::string_view>& values) const {
  CHECK(values.size() == labels_.size(), "one value per label");
  std::size_t index = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::vector<std::string>& known = labels_[i].values;
    const auto found = std::find(known.begin(), known.end(), values[i]);
    CHECK(found != known.end(), values[i]);
    index = index * known.size() + static_cast<std::size_t>(found - known.begin());
  }
  return metrics_[index];
}

template class MetricFamily<Counter>;
template class MetricFamily<Gauge>;
template class MetricFamily<Histogram>;

std::vector<double> latency_buckets_seconds() {
  return {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60};
}

std::vector<double> power_of_two_buckets(double largest) {
  std::vector<double> buckets;
  for (double edge = 1;; edge *= 2) {
    buckets.push_back(edge);
    if (edge >= largest) return buckets;
  }
}

struct Registry::Impl {
  std::shared_ptr<prometheus::Registry> registry = std::make_shared<prometheus::Registry>();
  std::mutex mutex;
  std::set<std::string, std::less<>> names;  // guarded by mutex

  void claim(std::string_view name) {
    CHECK(name.starts_with("millrace_"), name);
    std::lock_guard lock(mutex);
    CHECK(names.insert(std::string(name)).second, name);
  }
};

Registry::Registry() : impl_(std::make_shared<Impl>()) {}
Registry::~Registry() = default;

Counter Registry::counter(std::string_view name, std::string_view help) {
  return counter(name, help, std::vector<LabelSet>{}).with({});
}

Gauge Registry::gauge(std::string_view name, std::string_view help) {
  return gauge(name, help, std::vector<LabelSet>{}).with({});
}

Histogram Registry::histogram(std::string_view name, std::string_view help,
                              const std::vector<double>& buckets) {
  return histogram(name, help, {}, buckets).with({});
}

MetricFamily<Counter> Registry::counter(std::string_view name, std::string_view help,
                                        std::vector<LabelSet> labels) {
  CHECK(name.ends_with("_total"), name);
  impl_->claim(name);
  auto& family = prometheus::BuildCounter()
                     .Name(std::string(name))
                     .Help(std::string(help))
                     .Register(*impl_->registry);
  MetricFamily<Counter> result;
  for (const LabelMap& map : combinations(labels)) result.metrics_.emplace_back(family.Add(map));
  result.labels_ = std::move(labels);
  return result;
}

MetricFamily<Gauge> Registry::gauge(std::string_view name, std::string_view help,
                                    std::vector<LabelSet> labels) {
  impl_->claim(name);
  auto& family = prometheus::BuildGauge()
                     .Name(std::string(name))
                     .Help(std::string(help))
                     .Register(*impl_->registry);
  MetricFamily<Gauge> result;
  for (const LabelMap& map : combinations(labels)) result.metrics_.emplace_back(family.Add(map));
  result.labels_ = std::move(labels);
  return result;
}

MetricFamily<Histogram> Registry::histogram(std::string_view name, std::string_view help,
                                            std::vector<LabelSet> labels,
                                            const std::vector<double>& buckets) {
  impl_->claim(name);
  auto& family = prometheus::BuildHistogram()
                     .Name(std::string(name))
                     .Help(std::string(help))
                     .Register(*impl_->registry);
  MetricFamily<Histogram> result;
  for (const LabelMap& map : combinations(labels)) {
    result.metrics_.emplace_back(family.Add(map, buckets));
  }
  result.labels_ = std::move(labels);
  return result;
}

std::string Registry::exposition() const {
  return prometheus::TextSerializer().Serialize(impl_->registry->Collect());
}

namespace {

/// Connects and leaves. What fails is not this one's matter.
void visit(std::string_view address) {
  const std::size_t colon = address.rfind(':');
  std::uint16_t port = 0;
  std::from_chars(address.data() + colon + 1, address.data() + address.size(), port);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  if (inet_pton(AF_INET, std::string(address.substr(0, colon)).c_str(), &to.sin_addr) != 1) return;
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return;
  (void)::connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to));
  ::close(fd);
}

}  // namespace

struct MetricsServer::Impl {
  std::shared_ptr<prometheus::Registry> registry;
  std::unique_ptr<prometheus::Exposer> exposer;
};

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::start(const std::string& address,
                                                                    const Registry& registry) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0) {
    return absl::InvalidArgumentError(str_cat("metrics address \"", address, "\": want host:port"));
  }
  auto impl = std::make_unique<Impl>();
  impl->registry = registry.impl_->registry;
  try {
    // Two threads: one scrape at a time and one in waiting is all that is expected.
    impl->exposer = std::make_unique<prometheus::Exposer>(address, 2);
    impl->exposer->RegisterCollectable(impl->registry);
  } catch (const std::exception& error) {
    return absl::UnavailableError(
        str_cat("cannot serve metrics on ", address, ": ", error.what(), " (is the port in use?)"));
  }
  const std::vector<int> ports = impl->exposer->GetListeningPorts();
  if (ports.empty()) return absl::UnavailableError(str_cat("cannot serve metrics on ", address));
  std::string bound = str_cat(address.substr(0, colon), ":", ports.front());
  return std::unique_ptr<MetricsServer>(new MetricsServer(std::move(impl), std::move(bound)));
}

MetricsServer::MetricsServer(std::unique_ptr<Impl> impl, std::string address)
    : impl_(std::move(impl)), address_(std::move(address)) {}

/// civetweb's thread looks only every two seconds whether it is to stop, unless someone connects:
/// so someone does, until it has stopped.
MetricsServer::~MetricsServer() {
  std::jthread visitor([address = address_](const std::stop_token& has_stopped) {
    while (!has_stopped.stop_requested()) {
      visit(address);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  impl_->exposer.reset();
}

}  // namespace millrace
