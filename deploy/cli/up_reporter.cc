#include "deploy/cli/up_reporter.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "common/str_cat.h"

namespace millrace::deploy::cli {
namespace {

class PipeReporter final : public UpReporter {
 public:
  explicit PipeReporter(int fd) : fd_(fd) {}
  ~PipeReporter() override { close(fd_); }

  void step(std::string_view text) override { put('s', text); }
  void ready(std::string_view record_json) override { put('r', record_json); }
  void failed(std::string_view message) override { put('f', message); }

 private:
  void put(char kind, std::string_view text) {
    std::string line = str_cat(std::string_view(&kind, 1), text, "\n");
    std::replace(line.begin(), line.end() - 1, '\n', '\r');  // undone by the reader
    std::string_view rest = line;
    while (!rest.empty()) {
      const ssize_t written = write(fd_, rest.data(), rest.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return;  // nobody listens any more; the log has it all
      rest.remove_prefix(static_cast<std::size_t>(written));
    }
  }

  int fd_;
};

/// Hands one line on; true when it was the end.
bool relay_line(std::string line, UpReporter& reporter) {
  if (line.empty()) return false;
  std::replace(line.begin(), line.end(), '\r', '\n');
  const std::string_view text = std::string_view(line).substr(1);
  if (line[0] == 's') reporter.step(text);
  if (line[0] == 'r') reporter.ready(text);
  if (line[0] == 'f') reporter.failed(text);
  return line[0] != 's';
}

}  // namespace

std::unique_ptr<UpReporter> make_pipe_reporter(int fd) {
  return std::make_unique<PipeReporter>(fd);
}

bool relay_reports(int fd, int stop_fd, UpReporter& reporter) {
  std::string line;
  while (true) {
    std::array<pollfd, 2> fds = {pollfd{fd, POLLIN, 0}, pollfd{stop_fd, POLLIN, 0}};
    if (poll(fds.data(), fds.size(), -1) < 0 && errno != EINTR) return false;
    if ((fds[1].revents & POLLIN) != 0) return false;
    if (fds[0].revents == 0) continue;
    std::array<char, 4096> buffer;
    const ssize_t count = read(fd, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    for (char c : std::string_view(buffer.data(), static_cast<std::size_t>(count))) {
      if (c != '\n') {
        line.push_back(c);
      } else if (relay_line(std::exchange(line, {}), reporter)) {
        return true;
      }
    }
  }
}

}  // namespace millrace::deploy::cli
