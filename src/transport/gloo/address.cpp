#include "transport/gloo/address.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/error.hpp"

namespace echo_comm::core {
namespace {

const sockaddr_in& v4(const NetAddress& address) { return reinterpret_cast<const sockaddr_in&>(address.socket); }
const sockaddr_in6& v6(const NetAddress& address) { return reinterpret_cast<const sockaddr_in6&>(address.socket); }

NetAddress from(const std::string& interface, const sockaddr* socket) {
  NetAddress address;
  address.interface = interface;
  address.length = socket->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  std::memcpy(&address.socket, socket, address.length);
  return address;
}

std::string list_of(const std::vector<NetAddress>& addresses) {
  std::string list;
  for (const NetAddress& address : addresses) list += (list.empty() ? "" : ", ") + address.text();
  return list.empty() ? "none" : list;
}

// Lower is better.
int reluctance(const NetAddress& address) {
  return (address.loopback() ? 4 : 0) + (address.link_local() ? 2 : 0) + (address.family() == AF_INET ? 0 : 1);
}

const NetAddress* best_of(const std::vector<const NetAddress*>& candidates) {
  const auto best = std::ranges::min_element(
      candidates, [](const NetAddress* a, const NetAddress* b) { return reluctance(*a) < reluctance(*b); });
  return best == candidates.end() ? nullptr : *best;
}

}  // namespace

NetAddress NetAddress::of(const std::string& interface, const std::string& number) {
  sockaddr_in four{};
  if (inet_pton(AF_INET, number.c_str(), &four.sin_addr) == 1) {
    four.sin_family = AF_INET;
    return from(interface, reinterpret_cast<const sockaddr*>(&four));
  }
  sockaddr_in6 six{};
  require(inet_pton(AF_INET6, number.c_str(), &six.sin6_addr) == 1, ErrorCode::kArgument, "'", number,
          "' is no IP address");
  six.sin6_family = AF_INET6;
  return from(interface, reinterpret_cast<const sockaddr*>(&six));
}

bool NetAddress::loopback() const {
  if (family() == AF_INET) return ntohl(v4(*this).sin_addr.s_addr) >> 24 == 127;
  return IN6_IS_ADDR_LOOPBACK(&v6(*this).sin6_addr);
}

bool NetAddress::link_local() const {
  if (family() == AF_INET) return ntohl(v4(*this).sin_addr.s_addr) >> 16 == 0xA9FE;
  return IN6_IS_ADDR_LINKLOCAL(&v6(*this).sin6_addr);
}

bool NetAddress::same_host(const NetAddress& other) const {
  if (family() != other.family()) return false;
  if (family() == AF_INET) return v4(*this).sin_addr.s_addr == v4(other).sin_addr.s_addr;
  return IN6_ARE_ADDR_EQUAL(&v6(*this).sin6_addr, &v6(other).sin6_addr);
}

std::string NetAddress::number() const {
  char out[INET6_ADDRSTRLEN] = "?";
  const void* bytes = family() == AF_INET ? static_cast<const void*>(&v4(*this).sin_addr)
                                          : static_cast<const void*>(&v6(*this).sin6_addr);
  inet_ntop(family(), bytes, out, sizeof out);
  return out;
}

std::string NetAddress::text() const { return interface.empty() ? number() : interface + " " + number(); }

std::vector<NetAddress> local_addresses() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) fail_errno(ErrorCode::kSystem, "gloo: the interfaces of this host", errno);
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(first, freeifaddrs);
  std::vector<NetAddress> addresses;
  for (const ifaddrs* i = first; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || (i->ifa_flags & IFF_UP) == 0) continue;
    const int family = i->ifa_addr->sa_family;
    if (family == AF_INET || family == AF_INET6) addresses.push_back(from(i->ifa_name, i->ifa_addr));
  }
  return addresses;
}

std::vector<NetAddress> resolve(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first = nullptr;
  std::vector<NetAddress> addresses;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &first) != 0) return addresses;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(first, freeaddrinfo);
  for (const addrinfo* i = first; i != nullptr; i = i->ai_next) {
    if (i->ai_family == AF_INET || i->ai_family == AF_INET6) addresses.push_back(from("", i->ai_addr));
  }
  return addresses;
}

std::string own_host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

NetAddress choose_address(const std::vector<NetAddress>& local, const std::string& interface, const std::string& host,
                          const std::vector<NetAddress>& resolved) {
  std::vector<const NetAddress*> candidates;
  if (!interface.empty()) {
    for (const NetAddress& address : local) {
      if (address.interface == interface) candidates.push_back(&address);
    }
    const NetAddress* best = best_of(candidates);
    require(best != nullptr, ErrorCode::kArgument, "gloo: no interface '", interface,
            "' is up with an address; this host has: ", list_of(local));
    return *best;
  }
  // In the order of the resolver, which knows the host's preferences.
  for (const NetAddress& wanted : resolved) {
    if (host.empty() && wanted.loopback()) continue;
    for (const NetAddress& address : local) {
      if (address.same_host(wanted)) return address;
    }
  }
  require(host.empty(), ErrorCode::kArgument, "gloo: host '", host, "' ",
          resolved.empty() ? "cannot be resolved" : "stands for " + list_of(resolved) + ", which is not this host's",
          "; this host has: ", list_of(local));
  for (const NetAddress& address : local) candidates.push_back(&address);
  const NetAddress* best = best_of(candidates);
  require(best != nullptr, ErrorCode::kSystem, "gloo: no network interface of this host is up");
  return *best;
}

}  // namespace echo_comm::core
