// What the tools call right: the judge is judged.
#include "common/inputs.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace echo_comm::tools {
namespace {

TEST(Element, HalfConvertsEveryFiniteNumberToItselfAndTiesToEven) {
  for (unsigned bits = 0; bits < 0x10000U; ++bits) {
    const auto stored = static_cast<std::uint16_t>(bits);
    if ((bits & 0x7C00U) == 0x7C00U) continue;
    EXPECT_EQ(Half::store(Half::load(stored)), stored);
  }
  EXPECT_EQ(Half::load(0x3C00), 1.0F);
  EXPECT_EQ(Half::load(0x0001), 0x1p-24F);
  EXPECT_EQ(Half::load(0x7BFF), 65504.0F);
  EXPECT_EQ(Half::store(1.0F + 0x1p-11F), 0x3C00);      // tie: to the even 1
  EXPECT_EQ(Half::store(1.0F + 3 * 0x1p-11F), 0x3C02);  // tie: away from the odd
  EXPECT_EQ(Half::store(0x1p-25F), 0x0000);             // tie of denormals
  EXPECT_EQ(Half::store(1.0F + 0x1p-11F + 0x1p-20F), 0x3C01);
  EXPECT_TRUE(std::isinf(Half::load(0x7C00)));
  EXPECT_TRUE(std::isnan(Half::load(0x7E00)));
}

TEST(Element, BfloatTiesToEven) {
  EXPECT_EQ(Brain::store(1.0F), 0x3F80);
  EXPECT_EQ(Brain::store(1.0F + 0x1p-8F), 0x3F80);
  EXPECT_EQ(Brain::store(1.0F + 3 * 0x1p-8F), 0x3F82);
  EXPECT_EQ(Brain::load(0xC000), -2.0F);
}

// Nothing is rounded on the way into any element type, on any rank.
TEST(Grid, FitsEveryTypeExactly) {
  for (const int bits : {3, 4, 5, 6, 8}) {
    const Grid grid{.bits = bits, .ranks = 64};
    for (std::uint64_t group = 0; group < 2000; ++group) {
      for (const int valid : {1, 63, 64}) {
        for (const float value : grid.group(group, valid)) {
          for (int rank = 0; rank < 3; ++rank) {
            const float given = value * grid.factor_of(rank);
            ASSERT_EQ(Brain::load(Brain::store(given)), given);
            ASSERT_EQ(Half::load(Half::store(given)), given);
          }
        }
      }
    }
  }
}

TEST(Grid, SeesEveryElementThatIsNotAsPredicted) {
  for (const echo_dtype_t dtype : {ECHO_FLOAT32, ECHO_FLOAT16, ECHO_BFLOAT16}) {
    const Grid grid{.bits = 4, .ranks = 1};
    constexpr std::size_t kCount = 1000;
    std::vector<std::byte> tensor(kCount * element_size(dtype));
    fill_grid(tensor.data(), kCount, dtype, 0, grid);
    EXPECT_EQ(count_wrong(tensor.data(), kCount, dtype, grid), 0U);
    for (const std::size_t at : {std::size_t{0}, std::size_t{500}, kCount - 1}) {
      with_element(dtype, [&]<class E>(E) {
        auto& value = reinterpret_cast<typename E::Stored*>(tensor.data())[at];
        value = E::store(E::load(value) + 0.25F);
      });
    }
    EXPECT_EQ(count_wrong(tensor.data(), kCount, dtype, grid), 3U);
  }
}

// The sum of ranks is not what one rank brings times the number of ranks: a rank that counts twice shows.
TEST(Grid, TellsRanksApart) {
  const Grid sum{.bits = 4, .ranks = 3};
  EXPECT_EQ(sum.reduced(1), 7);  // 1 + 2 + 4
  const Grid average{.bits = 4, .ranks = 3, .op = ECHO_AVG};
  EXPECT_EQ(average.reduced(1), 1);
}

// The codes of another format are not exact: the check would notice a codec of the wrong size.
TEST(Grid, IsExactForItsOwnBitsAlone) {
  const Grid grid{.bits = 4, .ranks = 1};
  constexpr std::size_t kCount = 6400;
  std::vector<float> in(kCount);
  fill_grid(in.data(), kCount, ECHO_FLOAT32, 0, grid);
  for (const int bits : {3, 4}) {
    echo_range_t range = ECHO_RANGE_INITIALIZER;
    range.count = kCount;
    range.bits = bits;
    range.group_end = echo_groups(kCount, 0);
    std::size_t bytes = 0;
    ASSERT_EQ(echo_encoded_size(&range, &bytes), ECHO_SUCCESS);
    std::vector<std::byte> encoded(bytes);
    std::vector<float> out(kCount);
    const void* part = encoded.data();
    ASSERT_EQ(echo_encode(&range, in.data(), nullptr, encoded.data(), nullptr), ECHO_SUCCESS);
    ASSERT_EQ(echo_decode(&range, &part, 1, 1, 0, nullptr, out.data(), nullptr), ECHO_SUCCESS);
    const std::uint64_t wrong = count_wrong(out.data(), kCount, ECHO_FLOAT32, grid);
    if (bits == 4)
      EXPECT_EQ(wrong, 0U);
    else
      EXPECT_GT(wrong, kCount / 4);
  }
}

TEST(Random, IsNormalAndKnownToEveryRank) {
  double sum = 0;
  double squares = 0;
  constexpr int kCount = 100000;
  for (int i = 0; i < kCount; ++i) {
    const double value = random_value(3, static_cast<std::uint64_t>(i));
    sum += value;
    squares += value * value;
  }
  EXPECT_NEAR(sum / kCount, 0, 0.02);
  EXPECT_NEAR(squares / kCount, 1, 0.02);
  EXPECT_NE(random_value(0, 7), random_value(1, 7));
}

TEST(Random, ErrorIsThatAgainstFp64) {
  constexpr std::size_t kCount = 1000;
  std::vector<float> tensor(kCount);
  fill_random(tensor.data(), kCount, ECHO_FLOAT32, 0);
  EXPECT_EQ(random_error(tensor.data(), 0, kCount, ECHO_FLOAT32, {}).relative(), 0);
  for (float& value : tensor) value *= 1.5F;
  EXPECT_NEAR(random_error(tensor.data(), 0, kCount, ECHO_FLOAT32, {}).relative(), 0.5, 1e-6);
  tensor[0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(random_error(tensor.data(), 0, kCount, ECHO_FLOAT32, {}).relative()));
}

}  // namespace
}  // namespace echo_comm::tools
