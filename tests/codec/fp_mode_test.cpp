#include "codec/fp_mode.hpp"

#include <gtest/gtest.h>

#if defined(__x86_64__)
#include <xmmintrin.h>

#include <array>
#include <vector>

#include "codec/codec.hpp"

namespace echo_comm::core {
namespace {

constexpr unsigned kFlushAndTruncate = 0x1F80 | 0x8000 | 0x0040 | 0x6000;  // FTZ, DAZ, round toward zero

TEST(FpMode, IsSetInsideAndRestoredOutside) {
  const unsigned before = _mm_getcsr();
  _mm_setcsr(kFlushAndTruncate);
  {
    const FpModeGuard guard;
    EXPECT_EQ(_mm_getcsr() & 0xE040U, 0U);
  }
  EXPECT_EQ(_mm_getcsr(), kFlushAndTruncate);
  _mm_setcsr(before);
}

TEST(FpMode, CodesDoNotDependOnTheCallersMode) {
  std::vector<float> in(640);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i % 97) * 1e-3F - 0.04F;
  in[7] = 1e-42F;  // a denormal
  const GroupLayout layout(static_cast<int64_t>(in.size()), 0);
  const Block block{layout, {0, layout.groups()}, {4, true}, Dtype::kFloat32};
  const auto encode = [&] {
    std::vector<std::byte> bytes(static_cast<std::size_t>(block.encoded_bytes()));
    std::vector<float> sender(in.size(), 1e-43F);
    Residuals residuals;
    residuals.sender = {reinterpret_cast<std::byte*>(sender.data()), layout.groups()};
    reference_codec().encode(block, in.data(), residuals, bytes.data());
    return std::pair(bytes, sender);
  };
  const auto normal = encode();
  const unsigned before = _mm_getcsr();
  _mm_setcsr(kFlushAndTruncate);
  const auto flushed = encode();
  _mm_setcsr(before);
  EXPECT_EQ(normal, flushed);
}

}  // namespace
}  // namespace echo_comm::core
#endif
