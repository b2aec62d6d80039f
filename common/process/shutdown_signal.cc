#include "common/process/shutdown_signal.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <thread>
#include <utility>

#include "common/check.h"

namespace millrace {
namespace {

// A signal handler has no argument to carry an object, so its state is global; it belongs to the
// one ShutdownSignal.
std::atomic<int> g_event_fd{-1};
std::atomic<int> g_signal_count{0};
struct sigaction g_previous_term;
struct sigaction g_previous_int;
struct sigaction g_previous_pipe;

void on_signal(int) {
  const int saved_errno = errno;
  g_signal_count.fetch_add(1);
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(g_event_fd.load(), &one, sizeof one);
  errno = saved_errno;
}

}  // namespace

absl::StatusOr<ShutdownSignal> ShutdownSignal::install() {
  CHECK(g_event_fd.load() < 0, "one ShutdownSignal at a time");
  const int fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) return absl::ErrnoToStatus(errno, "eventfd");
  g_signal_count = 0;
  g_event_fd = fd;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGTERM, &action, &g_previous_term);
  ::sigaction(SIGINT, &action, &g_previous_int);
  action.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &action, &g_previous_pipe);
  ShutdownSignal result;
  result.is_installed_ = true;
  return result;
}

ShutdownSignal::ShutdownSignal(ShutdownSignal&& other) noexcept
    : is_installed_(std::exchange(other.is_installed_, false)) {}

ShutdownSignal::~ShutdownSignal() {
  if (!is_installed_) return;
  ::sigaction(SIGTERM, &g_previous_term, nullptr);
  ::sigaction(SIGINT, &g_previous_int, nullptr);
  ::sigaction(SIGPIPE, &g_previous_pipe, nullptr);
  ::close(g_event_fd.exchange(-1));
}

int ShutdownSignal::count() const { return g_signal_count.load(); }

int ShutdownSignal::fd() const { return g_event_fd.load(); }

int ShutdownSignal::wait_beyond(int seen) const {
  for (;;) {
    const int now = wait_beyond_for(seen, std::chrono::hours(1));
    if (now > seen) return now;
  }
}

int ShutdownSignal::wait_beyond_for(int seen, std::chrono::milliseconds timeout) const {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    const int now = count();
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (now > seen || left.count() <= 0) return now;
    if (seen == 0) {
      pollfd wait{.fd = fd(), .events = POLLIN, .revents = 0};
      ::poll(&wait, 1, static_cast<int>(std::min<std::int64_t>(left.count(), 60'000)));
    } else {
      // The descriptor stays readable after the first signal, so the second is looked for: only
      // while draining, twenty times a second.
      std::this_thread::sleep_for(std::min(left, std::chrono::milliseconds(50)));
    }
  }
}

}  // namespace millrace
