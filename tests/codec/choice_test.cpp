// Which codecs there are and which one runs; scripts/arm reads the lines that this prints.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "codec/dispatch.hpp"

#if defined(__aarch64__)
#include <sys/prctl.h>
#endif

namespace echo_comm::core {
namespace {

TEST(CodecChoice, IsTheBestOrTheOneThatTheEnvironmentNames) {
  std::string names;
  for (const Codec* codec : available_codecs()) names += std::string(" ") + codec->name();
  std::printf("codecs:%s\nactive: %s\n", names.c_str(), active_codec().name());
#if defined(__aarch64__) && defined(PR_SVE_GET_VL)
  const int vector = prctl(PR_SVE_GET_VL);
  std::printf("sve bits: %d\n", vector < 0 ? 0 : (vector & PR_SVE_VL_LEN_MASK) * 8);
#endif
  const char* forced = std::getenv("ECHO_CODEC");
  if (forced == nullptr || *forced == '\0') forced = available_codecs().front()->name();
  EXPECT_STREQ(active_codec().name(), forced);
}

}  // namespace
}  // namespace echo_comm::core
