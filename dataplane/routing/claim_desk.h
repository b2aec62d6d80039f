#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>

#include "common/time_point.h"
#include "dataplane/routing/prefill_claim.h"

namespace millrace::dataplane::routing {

/// A prefill instance of one rank pulls its requests: knows what every entrypoint offers and how
/// much is queued here, and says whom to ask for what. One claim at a time is on its way, so that
/// the limits are overshot by one request at most. Pure; one thread.
class ClaimDesk {
 public:
  /// A connection to an entrypoint; never used twice.
  using Stream = std::uint64_t;

  struct Claim {
    Stream stream = 0;
    std::uint64_t number = 0;  ///< rising within the stream, from 1
    int bucket = 0;

    friend bool operator==(const Claim&, const Claim&) = default;
  };

  explicit ClaimDesk(const ClaimLimits& limits) : limits_(limits) {}

  /// The buckets that the controller wants this instance to serve; the latest version counts. Until
  /// one is known it serves all.
  void serve(const std::array<bool, kBucketCount>& serves, std::uint64_t version);
  /// Takes the place of what the stream offered before.
  void offer(Stream stream, const Offers& offers);
  /// A claim was answered: granted, or the request was gone. Unknown numbers change nothing.
  void grant(Stream stream, std::uint64_t number);
  void gone(Stream stream, std::uint64_t number);
  /// The stream is over: its offers, its claim and what came over it are, too.
  void close(Stream stream);

  /// A start came over the stream and is on its way to the engine (claimed or not).
  void coming(Stream stream, std::int64_t quota_ns);
  /// The last one that came is not, after all.
  void not_coming(Stream stream);
  /// The engine has taken up so many starts of the stream since its beginning: they are part of
  /// what set_queued() says.
  void taken_up(Stream stream, std::uint64_t starts);
  /// What the engine has in its queue: predicted compute of all rows that are left, and requests
  /// that have not begun.
  void set_queued(std::int64_t queued_ns, std::int64_t waiting_requests);
  /// Whether finished prefills wait here because decode does not fetch what is exported: whatever
  /// else came would wait behind them.
  void set_held_up(bool is_held_up) { is_held_up_ = is_held_up; }
  /// No more claims (the worker drains).
  void stop() { is_stopped_ = true; }

  /// Whether it would claim if anything were offered.
  bool wants_more() const;
  /// The claim to send now. Ask again after every change, and every now and then: time alone can be
  /// a reason to help another bucket, or not to wait any longer for an answer.
  std::optional<Claim> next_claim(TimePoint now);

 private:
  struct OpenClaim {
    std::uint64_t number = 0;
    int bucket = 0;
    TimePoint since;
  };
  struct Entrypoint {
    Offers offers{};
    std::optional<OpenClaim> claim;
    std::uint64_t last_number = 0;
    std::uint64_t taken_up = 0;
    std::deque<std::int64_t> coming;  // quotas of starts on their way, in their order
  };

  std::optional<OpenClaim> take_claim(Stream stream, std::uint64_t number);

  const ClaimLimits limits_;
  std::map<Stream, Entrypoint> entrypoints_;
  std::array<bool, kBucketCount> serves_ = {true, true, true, true};
  std::uint64_t serves_version_ = 0;
  std::int64_t queued_ns_ = 0;
  std::int64_t waiting_requests_ = 0;
  std::int64_t coming_ns_ = 0;  // of all streams
  std::int64_t coming_requests_ = 0;
  bool is_held_up_ = false;
  bool is_stopped_ = false;
};

}  // namespace millrace::dataplane::routing
