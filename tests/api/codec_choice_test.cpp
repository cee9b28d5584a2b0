// The codec is chosen when a process first uses Echo: each child here is such a process, so nothing else may use it in
// this one.
#include <gmock/gmock.h>

#include <cstdlib>

#include "tests/collective/support.hpp"

namespace echo_comm::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

TEST(CodecChoice, NamesItsCodecsAndTakesTheOneThatIsAskedFor) {
  int count = 0;
  while (echo_codec_name(count) != nullptr) ++count;
  ASSERT_GE(count, 1);
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.emplace_back(echo_codec_name(i));
  EXPECT_THAT(names, Contains("reference"));
  EXPECT_EQ(echo_codec_name(-1), nullptr);
  for (int index = 0; index < count; ++index) {
    spawn_processes(1, [=](int, int) {
      setenv("ECHO_CODEC", echo_codec_name(index), 1);
      EXPECT_STREQ(echo_active_codec(), echo_codec_name(index));
    });
  }
  spawn_processes(1, [](int, int) {
    setenv("ECHO_CODEC", "abacus", 1);
    EXPECT_STREQ(echo_active_codec(), "");
    EXPECT_THAT(echo_last_error(), AllOf(HasSubstr("ECHO_CODEC=abacus"), HasSubstr("reference")));
    float x[70] = {};
    echo_range_t range ECHO_RANGE_INITIALIZER;
    range.count = 70;
    range.group_end = 2;
    std::byte encoded[68];
    EXPECT_EQ(echo_encode(&range, x, nullptr, encoded, nullptr), ECHO_ERROR_ARGUMENT);
  });
}

}  // namespace
}  // namespace echo_comm::testing
