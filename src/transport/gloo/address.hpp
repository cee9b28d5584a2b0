// Which of this host's addresses a rank listens on. Pure choice over lists, so that odd hosts can be tested anywhere.
#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

namespace echo_comm::core {

struct NetAddress {
  std::string interface;
  sockaddr_storage socket{};  // port 0
  socklen_t length = 0;

  // IPv4 or IPv6 in numbers; throws kArgument for anything else.
  static NetAddress of(const std::string& interface, const std::string& number);

  [[nodiscard]] int family() const { return socket.ss_family; }
  [[nodiscard]] bool loopback() const;
  [[nodiscard]] bool link_local() const;
  [[nodiscard]] bool same_host(const NetAddress& other) const;  // equal but for interface and port
  [[nodiscard]] std::string number() const;                     // "192.0.2.1"
  [[nodiscard]] std::string text() const;                       // "eth0 192.0.2.1"
};

// Addresses of the interfaces that are up.
std::vector<NetAddress> local_addresses();
// What a name or number stands for; empty when nothing.
std::vector<NetAddress> resolve(const std::string& host);
std::string own_host_name();

// `interface` and `host` as in GlooOptions; `resolved` is what `host`, or the host's own name when it is empty, stands
// for. Chosen without either: an address of the host name that is not loopback, else the first interface that is not
// (IPv4 before IPv6, link-local last), else loopback. Throws kArgument with the addresses that exist.
NetAddress choose_address(const std::vector<NetAddress>& local, const std::string& interface, const std::string& host,
                          const std::vector<NetAddress>& resolved);

}  // namespace echo_comm::core
