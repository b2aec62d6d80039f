#include "common/process/reload_signal.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "common/check.h"

namespace millrace {
namespace {

// A handler has no argument to carry an object; this belongs to the one ReloadSignal.
std::atomic<int> g_event_fd{-1};
struct sigaction g_previous;

void on_signal(int) {
  const int saved_errno = errno;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(g_event_fd.load(), &one, sizeof one);
  errno = saved_errno;
}

}  // namespace

absl::StatusOr<ReloadSignal> ReloadSignal::install() {
  CHECK(g_event_fd.load() < 0, "one ReloadSignal at a time");
  const int fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) return absl::ErrnoToStatus(errno, "eventfd");
  g_event_fd = fd;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGHUP, &action, &g_previous);
  ReloadSignal result;
  result.is_installed_ = true;
  return result;
}

ReloadSignal::ReloadSignal(ReloadSignal&& other) noexcept
    : is_installed_(std::exchange(other.is_installed_, false)) {}

ReloadSignal::~ReloadSignal() {
  if (!is_installed_) return;
  ::sigaction(SIGHUP, &g_previous, nullptr);
  ::close(g_event_fd.exchange(-1));
}

bool ReloadSignal::take() const {
  std::uint64_t count = 0;
  return ::read(fd(), &count, sizeof count) == sizeof count;
}

int ReloadSignal::fd() const { return g_event_fd.load(); }

}  // namespace millrace
