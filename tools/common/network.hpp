// Network interfaces of this host, as far as the tools need to know them.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace echo_comm::tools {

struct SocketAddress {
  sockaddr_storage storage{};
  std::uint32_t length = 0;  // 4 bytes on all sides, so that it can be sent as it is
  std::uint32_t unused = 0;

  [[nodiscard]] sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  [[nodiscard]] int family() const { return storage.ss_family; }
  [[nodiscard]] std::string text() const;  // without the port
};

struct Interface {
  std::string name;
  bool up = false;
  int mtu = 0;                           // 0: unknown
  std::optional<SocketAddress> address;  // IPv4 before IPv6, never a link-local one
};

// In the kernel's order.
std::vector<Interface> interfaces();

// "lo, eth0".
std::string names_of(const std::vector<Interface>& interfaces);

// Bytes that the interface has sent since it exists, headers included. nullopt: no such interface.
std::optional<std::int64_t> sent_bytes(const std::string& interface);

}  // namespace echo_comm::tools
