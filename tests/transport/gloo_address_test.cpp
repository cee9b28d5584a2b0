// Which address a rank listens on: D9.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.hpp"
#include "transport/gloo/address.hpp"

namespace echo_comm::core {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Addresses = std::vector<NetAddress>;

NetAddress at(const char* interface, const char* number) { return NetAddress::of(interface, number); }

const Addresses kHost{at("lo", "127.0.0.1"),   at("lo", "::1"),           at("eth1", "fe80::1"),
                      at("eth0", "192.0.2.1"), at("eth0", "2001:db8::1"), at("eth1", "198.51.100.1")};

std::string chosen(const Addresses& local, const std::string& interface, const std::string& host,
                   const Addresses& resolved) {
  try {
    return choose_address(local, interface, host, resolved).text();
  } catch (const Error& error) {
    return error.text();
  }
}

TEST(GlooAddress, IsThatOfTheHostNameUnlessItIsLoopback) {
  EXPECT_EQ(chosen(kHost, "", "", {at("", "198.51.100.1")}), "eth1 198.51.100.1");
  EXPECT_EQ(chosen(kHost, "", "", {at("", "2001:db8::1"), at("", "192.0.2.1")}), "eth0 2001:db8::1");
  EXPECT_EQ(chosen(kHost, "", "", {at("", "127.0.1.1")}), "eth0 192.0.2.1");  // Debian's /etc/hosts
  EXPECT_EQ(chosen(kHost, "", "", {at("", "127.0.1.1"), at("", "198.51.100.1")}), "eth1 198.51.100.1");
  EXPECT_EQ(chosen(kHost, "", "", {at("", "203.0.113.9")}), "eth0 192.0.2.1");  // of a name server that is out of date
  EXPECT_EQ(chosen(kHost, "", "", {}), "eth0 192.0.2.1");
}

TEST(GlooAddress, OnOddHosts) {
  EXPECT_EQ(chosen({at("lo", "::1"), at("eth0", "fe80::2"), at("eth0", "2001:db8::2")}, "", "", {}),
            "eth0 2001:db8::2");  // IPv6 only
  EXPECT_EQ(chosen({at("lo", "::1"), at("eth0", "fe80::2")}, "", "", {}), "eth0 fe80::2");
  EXPECT_EQ(chosen({at("lo", "127.0.0.1"), at("lo", "::1")}, "", "", {at("", "127.0.1.1")}), "lo 127.0.0.1");
  EXPECT_THAT(chosen({}, "", "", {}), HasSubstr("no network interface of this host is up"));
}

TEST(GlooAddress, CanBeChosenByInterface) {
  EXPECT_EQ(chosen(kHost, "eth1", "", {at("", "192.0.2.1")}), "eth1 198.51.100.1");
  EXPECT_EQ(chosen(kHost, "lo", "", {}), "lo 127.0.0.1");
  EXPECT_THAT(chosen(kHost, "ib0", "", {}), AllOf(HasSubstr("no interface 'ib0' is up"), HasSubstr("eth0 192.0.2.1"),
                                                  HasSubstr("eth1 198.51.100.1")));
}

TEST(GlooAddress, CanBeChosenByHost) {
  EXPECT_EQ(chosen(kHost, "", "198.51.100.1", {at("", "198.51.100.1")}), "eth1 198.51.100.1");
  EXPECT_EQ(chosen(kHost, "", "localhost", {at("", "::1"), at("", "127.0.0.1")}), "lo ::1");
  EXPECT_THAT(chosen(kHost, "", "elsewhere", {at("", "203.0.113.9")}),
              AllOf(HasSubstr("host 'elsewhere' stands for 203.0.113.9, which is not this host's"),
                    HasSubstr("this host has: lo 127.0.0.1")));
  EXPECT_THAT(chosen(kHost, "", "nonsense", {}), HasSubstr("host 'nonsense' cannot be resolved"));
}

TEST(GlooAddress, OfThisHostAreListed) {
  const Addresses local = local_addresses();
  EXPECT_FALSE(local.empty());
  for (const NetAddress& address : local) EXPECT_FALSE(address.interface.empty());
  EXPECT_EQ(resolve("127.0.0.1").at(0).number(), "127.0.0.1");
  EXPECT_TRUE(resolve("127.0.0.1").at(0).loopback());
  EXPECT_TRUE(resolve("name.invalid").empty());
}

}  // namespace
}  // namespace echo_comm::core
