// Element types and their conversions to and from fp32, bit by bit (numerics.md section 2: bf16 and fp16 outputs are
// rounded to nearest even, a NaN is canonical).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace echo_comm::core {

inline constexpr uint16_t kCanonicalBf16Nan = 0x7FC0;
inline constexpr uint16_t kCanonicalFp16Nan = 0x7E00;
inline constexpr uint32_t kCanonicalFp32Nan = 0x7FC00000;

inline uint32_t magnitude_bits(float x) { return std::bit_cast<uint32_t>(x) & 0x7FFFFFFFU; }
inline bool is_finite(float x) { return magnitude_bits(x) < 0x7F800000U; }

// Nearest integer, ties to even, for |x| < 2^22: adding 1.5 * 2^23 leaves no bits behind the binary point.
inline float round_half_even(float x) {
  constexpr float kShift = 0x1.8p23F;
  return (x + kShift) - kShift;
}

inline float bf16_to_float(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

inline uint16_t float_to_bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
  return static_cast<uint16_t>(magnitude_bits(x) > 0x7F800000U ? kCanonicalBf16Nan : rounded);
}

// Magnitude rounded up, so that |x| / scale never exceeds the range of the codes. x finite and below 2^125.
inline uint16_t float_to_bf16_up(float x) {
  return static_cast<uint16_t>((std::bit_cast<uint32_t>(x) + 0xFFFFU) >> 16);
}

inline float fp16_to_float(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000U} << 16;
  const uint32_t magnitude = half & 0x7FFFU;
  if (magnitude < 0x0400U) {  // zero and denormals: a multiple of 2^-24, exact
    const float value = static_cast<float>(magnitude) * 0x1p-24F;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
  }
  if (magnitude >= 0x7C00U) return std::bit_cast<float>(sign | 0x7F800000U | (magnitude << 13));
  return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000U));  // exponent bias 15 -> 127
}

inline uint16_t float_to_fp16(float x) {
  const uint32_t magnitude = magnitude_bits(x);
  if (magnitude > 0x7F800000U) return kCanonicalFp16Nan;
  const auto sign = static_cast<uint16_t>((std::bit_cast<uint32_t>(x) >> 16) & 0x8000U);
  if (magnitude >= 0x477FF000U) return sign | 0x7C00U;  // 65520 and more round to infinity
  if (magnitude < 0x38800000U) {
    // Below 2^-14: adding 0.5 puts the last bit of the sum at 2^-24, the step of fp16 denormals.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000U));
  }
  const uint32_t rounded = (magnitude - 0x38000000U + 0x0FFFU + ((magnitude >> 13) & 1U)) >> 13;
  return static_cast<uint16_t>(sign | rounded);
}

// Traits of the three element types: stored form, conversions, largest finite value.
struct Fp32 {
  using Stored = float;
  static float load(float stored) { return stored; }
  static float store(float x) { return magnitude_bits(x) > 0x7F800000U ? nan() : x; }
  static float nan() { return std::bit_cast<float>(kCanonicalFp32Nan); }
  static constexpr float kMax = std::numeric_limits<float>::max();
};

struct Bf16 {
  using Stored = uint16_t;
  static float load(uint16_t stored) { return bf16_to_float(stored); }
  static uint16_t store(float x) { return float_to_bf16(x); }
  static uint16_t nan() { return kCanonicalBf16Nan; }
  static constexpr float kMax = 0x1.FEp127F;
};

struct Fp16 {
  using Stored = uint16_t;
  static float load(uint16_t stored) { return fp16_to_float(stored); }
  static uint16_t store(float x) { return float_to_fp16(x); }
  static uint16_t nan() { return kCanonicalFp16Nan; }
  static constexpr float kMax = 65504.0F;
};

}  // namespace echo_comm::core
