// Transport URLs of every scheme.
#include "api/url.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/error.hpp"

namespace echo_comm::core {
namespace {

using ::testing::HasSubstr;

std::string refusal(const std::string& url) {
  try {
    parse_url(url);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kArgument);
    return error.text();
  }
  return "nothing was thrown";
}

TEST(Url, OfShm) {
  const TransportUrl url = parse_url("shm://job-1.a_B?size=3&rank=2");
  EXPECT_EQ(url.kind, TransportUrl::Kind::kShm);
  EXPECT_EQ(url.name, "job-1.a_B");
  EXPECT_EQ(url.rank, 2);
  EXPECT_EQ(url.size, 3);
  EXPECT_THAT(refusal("shm://x?rank=0&size=1&iface=lo"), HasSubstr("unknown option 'iface'"));
}

TEST(Url, OfGloo) {
  const TransportUrl url = parse_url("gloo+file:///shared/dir?rank=0&size=4&iface=eth0.100@if2");
  EXPECT_EQ(url.kind, TransportUrl::Kind::kGlooFile);
  EXPECT_EQ(url.name, "/shared/dir");
  EXPECT_EQ(url.interface, "eth0.100@if2");
  EXPECT_EQ(url.size, 4);
  EXPECT_EQ(parse_url("gloo+file:///d?rank=0&size=1&host=2001:db8::1").host, "2001:db8::1");
  EXPECT_EQ(parse_url("gloo+file:///d?rank=0&size=1").interface, "");
}

TEST(Url, OfGlooIsRefusedWithTheReason) {
  EXPECT_THAT(refusal("gloo+file://shared/dir?rank=0&size=1"), HasSubstr("must be absolute, with a third slash"));
  EXPECT_THAT(refusal("gloo+file://?rank=0&size=1"), HasSubstr("must be absolute"));
  EXPECT_THAT(refusal("gloo+file:///my dir?rank=0&size=1"), HasSubstr("must not have spaces"));
  EXPECT_THAT(refusal("gloo+file:///my%20dir?rank=0&size=1"), HasSubstr("nothing is decoded here"));
  EXPECT_THAT(refusal("gloo+file:///d?rank=0&size=1&rank=0"), HasSubstr("rank is given twice"));
  EXPECT_THAT(refusal("gloo+file:///d?rank=0&size=1&iface=a&iface=a"), HasSubstr("iface is given twice"));
  EXPECT_THAT(refusal("gloo+file:///d?rank=0&size=1&iface="), HasSubstr("iface='' is no name"));
  EXPECT_THAT(refusal("gloo+file:///d?rank=0&size=1&host=a b"), HasSubstr("host='a b' is no name"));
  EXPECT_THAT(refusal("gloo+file:///d?rank=0&size=1&iface=lo&host=::1"), HasSubstr("exclude each other"));
  EXPECT_THAT(refusal("gloo+file:///d?rank=0&size=1&port=1"), HasSubstr("unknown option 'port'"));
  EXPECT_THAT(refusal("gloo+file:///d?rank=0"), HasSubstr("size is missing"));
  EXPECT_THAT(refusal("gloo+file:///d?rank=1&size=1"), HasSubstr("0 to size - 1"));
  EXPECT_THAT(refusal("gloo:///d?rank=0&size=1"), HasSubstr("unknown transport"));
  EXPECT_THAT(refusal("gloo:///d?rank=0&size=1"), HasSubstr("gloo+file:///DIRECTORY?rank=R&size=W"));
}

}  // namespace
}  // namespace echo_comm::core
