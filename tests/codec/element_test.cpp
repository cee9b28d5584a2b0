#include "codec/element.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace echo_comm::core {
namespace {

// Value of a 16-bit float from its fields, in double arithmetic.
double value_of(uint16_t bits, int exponent_bits, int bias) {
  const int mantissa_bits = 15 - exponent_bits;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const double mantissa = bits & ((1 << mantissa_bits) - 1);
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                                         : std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

bool is_nan16(uint16_t bits, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits;
  const int exponent_mask = ((1 << exponent_bits) - 1) << mantissa_bits;
  return (bits & exponent_mask) == exponent_mask && (bits & ((1 << mantissa_bits) - 1)) != 0;
}

TEST(Fp16, EveryValueLoadsExactlyAndStoresBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float x = fp16_to_float(half);
    if (is_nan16(half, 5)) {
      ASSERT_TRUE(std::isnan(x)) << bits;
      ASSERT_EQ(float_to_fp16(x), kCanonicalFp16Nan);
      continue;
    }
    if ((half & 0x7FFF) == 0x7C00) {
      ASSERT_TRUE(std::isinf(x));
    } else {
      ASSERT_EQ(static_cast<double>(x), value_of(half, 5, 15)) << bits;
    }
    ASSERT_EQ(float_to_fp16(x), half) << bits;
  }
}

TEST(Bf16, EveryValueLoadsExactlyAndStoresBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto stored = static_cast<uint16_t>(bits);
    if (is_nan16(stored, 8)) {
      ASSERT_EQ(float_to_bf16(bf16_to_float(stored)), kCanonicalBf16Nan);
    } else {
      ASSERT_EQ(float_to_bf16(bf16_to_float(stored)), stored);
    }
  }
}

// Nearest even, against the two neighbours in double arithmetic.
template <typename Load, typename Store>
void expect_nearest(float x, const Load& load, const Store& store) {
  const uint16_t got = store(x);
  if ((got & 0x7FFF) == 0) return;  // magnitude below half the smallest: checked by the loop over all values
  const double error = std::abs(static_cast<double>(load(got)) - x);
  for (const int step : {-1, 1}) {
    const auto neighbour = static_cast<uint16_t>(got + step);
    const float other = load(neighbour);
    if (!std::isfinite(other)) continue;
    const double other_error = std::abs(static_cast<double>(other) - x);
    ASSERT_LE(error, other_error) << x;
    if (error == other_error) {
      ASSERT_EQ(got & 1, 0) << x << ": a tie goes to even";
    }
  }
}

TEST(Conversions, RoundToNearestEven) {
  std::mt19937 random(1);
  std::uniform_int_distribution<uint32_t> any_bits;
  for (int i = 0; i < 400'000; ++i) {
    const float x = std::bit_cast<float>(any_bits(random));
    if (!std::isfinite(x)) continue;
    if (std::abs(x) < 65504) expect_nearest(x, fp16_to_float, float_to_fp16);
    if (std::abs(x) < Bf16::kMax) expect_nearest(x, bf16_to_float, float_to_bf16);
  }
  for (uint32_t bits = 0; bits < 0x7BFF; ++bits) {  // every midpoint of fp16
    const float low = fp16_to_float(static_cast<uint16_t>(bits));
    const float high = fp16_to_float(static_cast<uint16_t>(bits + 1));
    const float middle = low + (high - low) / 2;
    ASSERT_EQ(float_to_fp16(middle), (bits & 1) == 0 ? bits : bits + 1);
  }
}

// A1: only what is past the range of fp16 becomes an infinity.
TEST(Conversions, OverflowAtTheEndOfTheRange) {
  EXPECT_EQ(float_to_fp16(65519.996F), 0x7BFF);
  EXPECT_EQ(float_to_fp16(65520.0F), 0x7C00);
  EXPECT_EQ(float_to_fp16(-1e30F), 0xFC00);
  EXPECT_EQ(float_to_bf16(Fp32::kMax), 0x7F80);
}

TEST(Conversions, RoundUpNeverLosesMagnitude) {
  std::mt19937 random(2);
  std::uniform_real_distribution<float> uniform(-1.0F, 1.0F);
  for (int i = 0; i < 100'000; ++i) {
    const float x = uniform(random);
    const float up = bf16_to_float(float_to_bf16_up(x));
    ASSERT_GE(std::abs(up), std::abs(x));
    ASSERT_LE(std::abs(up), std::abs(x) * (1 + 0x1p-7F));
    ASSERT_EQ(std::signbit(up), std::signbit(x));
  }
}

}  // namespace
}  // namespace echo_comm::core
