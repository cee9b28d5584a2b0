#include "common/network.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>

namespace echo_comm::tools {
namespace {

bool usable(const sockaddr* address) {
  if (address == nullptr) return false;
  if (address->sa_family == AF_INET) return true;
  if (address->sa_family != AF_INET6) return false;
  return !IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

int mtu_of(const std::string& name) {
  std::ifstream file("/sys/class/net/" + name + "/mtu");
  int mtu = 0;
  file >> mtu;
  return file ? mtu : 0;
}

SocketAddress copy_of(const sockaddr* address) {
  SocketAddress copy;
  copy.length = address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  std::memcpy(&copy.storage, address, copy.length);
  return copy;
}

}  // namespace

std::string SocketAddress::text() const {
  std::array<char, INET6_ADDRSTRLEN> digits{};
  const void* where = family() == AF_INET
                          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr)
                          : static_cast<const void*>(&reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr);
  return inet_ntop(family(), where, digits.data(), digits.size()) != nullptr ? digits.data() : "?";
}

std::vector<Interface> interfaces() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(first, &freeifaddrs);
  std::vector<Interface> found;
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    auto at = std::ranges::find_if(found, [&](const Interface& one) { return one.name == entry->ifa_name; });
    if (at == found.end()) {
      found.push_back({entry->ifa_name, (entry->ifa_flags & IFF_UP) != 0, mtu_of(entry->ifa_name), {}});
      at = found.end() - 1;
    }
    if (!usable(entry->ifa_addr)) continue;
    if (!at->address || (at->address->family() == AF_INET6 && entry->ifa_addr->sa_family == AF_INET)) {
      at->address = copy_of(entry->ifa_addr);
    }
  }
  return found;
}

std::string names_of(const std::vector<Interface>& interfaces) {
  std::string names;
  for (const Interface& one : interfaces) names += (names.empty() ? "" : ", ") + one.name;
  return names;
}

// A line is "NAME: received bytes and 7 more figures, sent bytes and 7 more".
std::optional<std::int64_t> sent_bytes(const std::string& interface) {
  std::ifstream file("/proc/net/dev");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    const std::size_t begin = line.find_first_not_of(' ');
    if (colon == std::string::npos || line.substr(begin, colon - begin) != interface) continue;
    std::istringstream figures(line.substr(colon + 1));
    std::int64_t value = 0;
    for (int field = 0; field < 9; ++field) figures >> value;
    if (figures) return value;
  }
  return std::nullopt;
}

}  // namespace echo_comm::tools
