// Unix sockets in the abstract namespace: names without files, gone with the last process that holds them. They are
// visible in one network namespace; processes that do not share one do not share memory either.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "base/deadline.hpp"

namespace echo_comm::core {

// Owner of a file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd();
  [[nodiscard]] int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

struct SocketAddress {
  explicit SocketAddress(const std::string& abstract_name);
  sockaddr_un address{};
  socklen_t length = 0;
};

// SOCK_SEQPACKET keeps messages apart: a read gives one whole message or an error, never a piece that makes one wait
// for the rest. SOCK_DGRAM serves as a mere name. Both non-blocking and close-on-exec. Throws kSystem.
Fd open_socket(int type);

// 0, or the error number.
int bind_to(const Fd& socket, const SocketAddress& address);
int connect_to(const Fd& socket, const SocketAddress& address);

// User of the process on the other side, as the kernel knows it; nothing when it cannot be asked.
std::optional<uid_t> peer_user(const Fd& socket);

// One message, with `passed` as a file descriptor unless negative. False when the other side is gone or does not read.
bool send_message(const Fd& socket, const void* bytes, std::size_t size, int passed = -1);

// Bytes of the message that is there, 0 when the other side is gone, -1 when nothing is there yet. A descriptor that
// came along goes to `passed`, or is dropped by the kernel when that is null.
ssize_t read_message(const Fd& socket, void* bytes, std::size_t size, Fd* passed = nullptr);

// Milliseconds for poll(): rounded up, 0 when over.
int poll_time(std::chrono::nanoseconds left);

}  // namespace echo_comm::core
