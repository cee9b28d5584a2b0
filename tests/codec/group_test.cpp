#include "codec/group.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>
#include <vector>

#include "codec/element.hpp"
#include "wire/format.hpp"

namespace echo_comm::core {
namespace {

using Group = std::array<float, kGroup>;
using Codes = std::array<uint8_t, kGroup>;

const std::vector<int> kAllBits = {3, 4, 5, 6, 8};

Group normal_group(std::mt19937& random) {
  std::normal_distribution<float> normal;
  Group v;
  for (float& x : v) x = normal(random);
  return v;
}

// Heavy tails: a normal variable to the fifth power, spread over many orders of magnitude.
Group heavy_group(std::mt19937& random) {
  std::uniform_real_distribution<float> exponent(-20.0F, 20.0F);
  Group v = normal_group(random);
  const float factor = std::exp2(exponent(random));
  for (float& x : v) x = x * x * x * x * x * factor;
  return v;
}

float largest(const Group& v) {
  float result = 0;
  for (const float x : v) result = std::max(result, std::abs(x));
  return result;
}

TEST(Rotation, IsOrthonormalAndItsOwnInverse) {
  std::mt19937 random(1);
  const Group v = normal_group(random);
  Group turned = v;
  rotate(turned);
  double before = 0;
  double after = 0;
  for (int i = 0; i < kGroup; ++i) {
    before += double{v[i]} * v[i];
    after += double{turned[i]} * turned[i];
  }
  EXPECT_NEAR(after / before, 1.0, 1e-6);
  rotate(turned);
  for (int i = 0; i < kGroup; ++i) EXPECT_NEAR(turned[i], v[i], 1e-6);
}

TEST(Rotation, IsTheHadamardMatrix) {
  for (int column = 0; column < kGroup; ++column) {
    Group unit{};
    unit[column] = 1.0F;
    rotate(unit);
    for (int row = 0; row < kGroup; ++row) {
      const float sign = __builtin_popcount(static_cast<unsigned>(row & column)) % 2 == 0 ? 1.0F : -1.0F;
      ASSERT_EQ(unit[row], sign / 8.0F) << row << "," << column;
    }
  }
}

// numerics.md section 4: the new residual is at most 2^-(bits-1) of the largest value, exactly.
TEST(EncodeGroup, ContractsAtEveryWidth) {
  std::mt19937 random(2);
  for (const int bits : kAllBits) {
    for (int repeat = 0; repeat < 5000; ++repeat) {
      const Group v = repeat % 2 == 0 ? normal_group(random) : heavy_group(random);
      Codes codes;
      Group residual;
      encode_group(v, bits, codes.data(), residual.data());
      ASSERT_LE(largest(residual), largest(v) * std::exp2(1.0F - static_cast<float>(bits))) << bits << " bits";
    }
  }
}

TEST(EncodeGroup, ResidualIsExactlyWhatTheCodesDoNotSay) {
  std::mt19937 random(3);
  for (const int bits : kAllBits) {
    const Group v = normal_group(random);
    Codes codes;
    Group residual;
    Group decoded;
    const uint16_t scale = encode_group(v, bits, codes.data(), residual.data());
    decode_group(codes.data(), scale, bits, decoded);
    for (int i = 0; i < kGroup; ++i) ASSERT_EQ(residual[i], v[i] - decoded[i]) << bits << " bits, element " << i;
  }
}

TEST(EncodeGroup, ExtremumGetsTheLowestCodeAndDecidesTheSignOfTheScale) {
  Group v{};
  v[9] = 4.0F;
  v[40] = -4.0F;  // a tie: the lower index wins
  v[41] = 3.5F;
  Codes codes;
  const uint16_t scale = encode_group(v, 4, codes.data(), nullptr);
  EXPECT_EQ(bf16_to_float(scale), -0.5F);
  EXPECT_EQ(codes[4] >> 4, 0);    // element 9: code -8, stored 0
  EXPECT_EQ(codes[20] & 15, 15);  // element 40: +8 does not exist, clipped to 7
  EXPECT_EQ(codes[20] >> 4, 1);   // element 41: code -7
}

// The bytes of FORMAT.md: element i of a group holds the stored value i mod 2^bits.
TEST(EncodeGroup, PacksAsDocumented) {
  for (const int bits : kAllBits) {
    const int half = 1 << (bits - 1);
    Group v;
    for (int i = 0; i < kGroup; ++i) v[i] = static_cast<float>(i % (2 * half) - half);
    if (bits == 8) v[0] = -128.0F;
    v[0] = static_cast<float>(-half);
    Codes codes{};
    ASSERT_EQ(bf16_to_float(encode_group(v, bits, codes.data(), nullptr)), 1.0F);
    for (int i = 0; i < kGroup; ++i) {
      unsigned stored = 0;
      if (bits == 8) {
        stored = codes[i];
      } else {
        const int nibbles = bits >= 4 ? 32 : 0;
        if (bits >= 4) stored = i % 2 == 0 ? codes[i / 2] & 15U : codes[i / 2] >> 4U;
        for (int bit = bits >= 4 ? 4 : 0; bit < bits; ++bit) {
          const int plane = nibbles + 8 * (bit - (bits >= 4 ? 4 : 0));
          stored |= ((codes[plane + i / 8] >> (i % 8)) & 1U) << bit;
        }
      }
      ASSERT_EQ(static_cast<int>(stored), static_cast<int>(v[i]) + half) << bits << " bits, element " << i;
    }
  }
}

// A3, A4, R4.
TEST(EncodeGroup, ZeroGroupsHaveScaleZeroAndOweNothing) {
  for (const float tiny : {0.0F, -0.0F, 0x1p-101F, -0x1p-126F, 1e-45F}) {
    for (const int bits : kAllBits) {
      Group v{};
      v[3] = tiny;
      Codes codes;
      Group residual;
      residual.fill(1.0F);
      const uint16_t scale = encode_group(v, bits, codes.data(), residual.data());
      EXPECT_EQ(scale, 0);
      Group decoded;
      decode_group(codes.data(), scale, bits, decoded);
      for (int i = 0; i < kGroup; ++i) {
        ASSERT_EQ(std::bit_cast<uint32_t>(decoded[i]), 0U) << "exact +0";
        ASSERT_EQ(std::bit_cast<uint32_t>(residual[i]), 0U);
      }
    }
  }
}

TEST(EncodeGroup, TheSmallestLiveGroupIsNotZero) {
  Group v{};
  v[0] = 0x1p-100F;
  Codes codes;
  EXPECT_NE(encode_group(v, 4, codes.data(), nullptr), 0);
}

// A6, R3.
TEST(EncodeGroup, NonFiniteAndHugeValuesPoisonTheGroup) {
  for (const float bad : {NAN, -NAN, INFINITY, -INFINITY, 0x1p124F, -0x1p124F, Fp32::kMax}) {
    for (const int at : {0, 31, 63}) {
      for (const int bits : kAllBits) {
        Group v;
        v.fill(1.0F);
        v[at] = bad;
        Codes codes;
        Group residual;
        residual.fill(1.0F);
        const uint16_t scale = encode_group(v, bits, codes.data(), residual.data());
        EXPECT_EQ(scale, kPoisonedScale);
        EXPECT_TRUE(is_poisoned_scale(scale));
        EXPECT_EQ(largest(residual), 0.0F);
        Group decoded;
        decode_group(codes.data(), scale, bits, decoded);
        for (const float x : decoded) ASSERT_TRUE(std::isnan(x));
      }
    }
  }
  Group v{};
  v[0] = std::nextafter(0x1p124F, 0.0F);
  Codes codes;
  EXPECT_FALSE(is_poisoned_scale(encode_group(v, 4, codes.data(), nullptr)));
}

// I7: every code and every scale decodes to something, within the group.
TEST(DecodeGroup, TakesAnyBytes) {
  std::mt19937 random(4);
  std::uniform_int_distribution<int> byte(0, 255);
  for (int repeat = 0; repeat < 1000; ++repeat) {
    Codes codes;
    for (uint8_t& c : codes) c = static_cast<uint8_t>(byte(random));
    const auto scale = static_cast<uint16_t>(byte(random) << 8 | byte(random));
    for (const int bits : kAllBits) {
      Group v;
      decode_group(codes.data(), scale, bits, v);
      const float bound = std::abs(bf16_to_float(scale)) * static_cast<float>(1 << (bits - 1));
      for (const float x : v) ASSERT_TRUE(is_poisoned_scale(scale) || std::abs(x) <= bound);
    }
  }
}

}  // namespace
}  // namespace echo_comm::core
