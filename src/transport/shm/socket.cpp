#include "transport/shm/socket.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.hpp"

namespace echo_comm::core {

Fd::~Fd() {
  if (fd_ >= 0) close(fd_);
}

SocketAddress::SocketAddress(const std::string& abstract_name) {
  address.sun_family = AF_UNIX;
  require(abstract_name.size() < sizeof address.sun_path, ErrorCode::kArgument, "name '", abstract_name, "' too long");
  // The leading zero byte makes the name abstract.
  std::memcpy(address.sun_path + 1, abstract_name.data(), abstract_name.size());
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + abstract_name.size());
}

Fd open_socket(int type) {
  Fd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) fail_errno(ErrorCode::kSystem, "shm: unix socket", errno);
  return socket;
}

int bind_to(const Fd& socket, const SocketAddress& address) {
  return bind(socket.get(), reinterpret_cast<const sockaddr*>(&address.address), address.length) == 0 ? 0 : errno;
}

int connect_to(const Fd& socket, const SocketAddress& address) {
  return connect(socket.get(), reinterpret_cast<const sockaddr*>(&address.address), address.length) == 0 ? 0 : errno;
}

std::optional<uid_t> peer_user(const Fd& socket) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) return std::nullopt;
  return credentials.uid;
}

bool send_message(const Fd& socket, const void* bytes, std::size_t size, int passed) {
  iovec part{const_cast<void*>(bytes), size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (passed >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &passed, sizeof passed);
  }
  ssize_t sent = 0;
  do {
    sent = sendmsg(socket.get(), &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(size);
}

ssize_t read_message(const Fd& socket, void* bytes, std::size_t size, Fd* passed) {
  iovec part{bytes, size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (passed != nullptr) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
  }
  // ECONNRESET: the other side closed with something of ours unread. What it sent before is still there to be read, the
  // kernel just reports the error first, once.
  ssize_t got = 0;
  do {
    got = recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC);
  } while (got < 0 && (errno == EINTR || errno == ECONNRESET));
  if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? -1 : 0;
  const cmsghdr* header = passed != nullptr ? CMSG_FIRSTHDR(&message) : nullptr;
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
      header->cmsg_len == CMSG_LEN(sizeof(int))) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
    *passed = Fd(fd);
  }
  return got;
}

int poll_time(std::chrono::nanoseconds left) {
  const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return static_cast<int>(std::clamp<int64_t>(milliseconds, 0, 1'000'000));
}

}  // namespace echo_comm::core
