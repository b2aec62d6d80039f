#include "deploy/cli/listen_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>

#include "common/str_cat.h"

namespace millrace::deploy::cli {

absl::StatusOr<std::string> find_listen_address(std::string_view address) {
  const std::size_t colon = address.rfind(':');
  const std::string host(address.substr(0, colon));
  std::string_view port_text;
  if (colon != std::string_view::npos) port_text = address.substr(colon + 1);
  std::uint16_t port = 0;
  const auto [end, error] =
      std::from_chars(port_text.data(), port_text.data() + port_text.size(), port);
  sockaddr_in target{};
  target.sin_family = AF_INET;
  const std::string numeric = host == "localhost" ? "127.0.0.1" : host;
  if (port_text.empty() || error != std::errc() || end != port_text.data() + port_text.size() ||
      inet_pton(AF_INET, numeric.c_str(), &target.sin_addr) != 1) {
    return absl::InvalidArgumentError(
        str_cat("\"", address, "\" is no host:port, for example 127.0.0.1:8000"));
  }
  target.sin_port = htons(port);

  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::ResourceExhaustedError(str_cat("no socket: ", strerror(errno)));
  // As servers do: an address whose last connections still fade away may be used again.
  const int yes = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  socklen_t size = sizeof(target);
  auto* const any_address = reinterpret_cast<sockaddr*>(&target);
  const bool is_bound = bind(fd, any_address, size) == 0 && listen(fd, 1) == 0 &&
                        getsockname(fd, any_address, &size) == 0;
  const int reason = errno;
  close(fd);
  if (is_bound) return str_cat(numeric, ":", ntohs(target.sin_port));
  if (reason == EADDRINUSE) {
    return absl::AlreadyExistsError(str_cat(address, " is in use by another program"));
  }
  return absl::InvalidArgumentError(str_cat("cannot listen at ", address, ": ", strerror(reason)));
}

}  // namespace millrace::deploy::cli
