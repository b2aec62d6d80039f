#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "storage/fetch/window_types.h"
#include "storage/swa/window_pool.h"

namespace millrace::storage::fetch {

/// Decides which windows the fetcher keeps, whom it gives them to, and which it reads from other
/// machines. Pure: no I/O, no clock, no lock; one thread.
///
/// A window that is asked for is taken from the pool if any slot of it has that key, wherever the
/// asker believes it to be; else from the machine that is named, as a copy in the pool that lives
/// shortly. Every get is answered once: ready, leased to its session; or missed, with the reason.
/// No answer is an error: an engine without a window computes it.
class WindowCore {
 public:
  /// `owner` goes into the locations of what is stored here.
  WindowCore(const WindowLimits& limits, WindowOwner owner);

  /// Applies one event; returns what is to be done about it, in order.
  WindowActions on_event(WindowEvent event, TimePoint now);
  /// The session is told nothing more, and all it has is given back.
  WindowActions end_session(SessionId session, TimePoint now);
  /// Ends what `now` ends.
  WindowActions on_timer(TimePoint now);
  /// Nothing more is stored or read from other machines.
  void begin_drain() { is_draining_ = true; }

  /// When on_timer() is wanted; nullopt: not until something else happens.
  std::optional<TimePoint> next_timer() const { return pool_.next_expiry(); }
  WindowCounters counters() const;
  /// No read from another machine is under way.
  bool is_idle() const { return peer_reads_.empty(); }

 private:
  struct Get {
    std::uint64_t peer_read = 0;  ///< 0: it is ready
    swa::WindowPool::LeaseId lease = 0;
  };
  struct PeerRead {
    SessionId session = 0;
    RequestId request_id = 0;
    BlockKey key;
    bool is_wanted = true;
  };

  void apply(PutWindow& event, TimePoint now);
  void apply(GetWindow& event, TimePoint now);
  void apply(const ReleaseWindow& event, TimePoint now);
  void apply(PeerReadFinished& event, TimePoint now);

  WindowPutEnd put(PutWindow& event, TimePoint now, std::optional<swa::WindowLocation>& at);
  /// What keeps the window from being read from where it is said to be; nullopt: nothing.
  std::optional<swa::WindowMiss> reason_not_to_read(const GetWindow& event, TimePoint now) const;
  void start_peer_read(GetWindow& event);
  void give(SessionId session, RequestId request_id, const swa::WindowPool::Lease& lease);
  void miss(SessionId session, RequestId request_id, swa::WindowMiss reason);
  void give_back(const Get& get, TimePoint now);
  /// The actions of this event, and what time has ended.
  WindowActions take_actions(TimePoint now);

  const WindowLimits limits_;
  const WindowOwner owner_;
  swa::WindowPool pool_;
  std::map<SessionId, std::map<RequestId, Get>> sessions_;
  std::map<std::uint64_t, PeerRead> peer_reads_;
  std::uint64_t last_peer_read_ = 0;
  bool is_draining_ = false;
  WindowActions actions_;  ///< of the event that is being handled
  WindowCounters counters_;
};

}  // namespace millrace::storage::fetch
