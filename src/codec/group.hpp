// The specification in code: what happens to one group of 64 values (numerics.md section 2).
// The numbers in the comments of group.cpp are the steps of that section.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "wire/layout.hpp"

namespace echo_comm::core {

using GroupValues = std::span<float, kGroup>;
using ConstGroupValues = std::span<const float, kGroup>;

inline constexpr uint16_t kPoisonedScale = 0x7FC0;  // bf16 NaN

// Magnitudes from which a group is poisoned, and below which it is a zero group, as fp32 bits. Magnitudes of finite
// numbers, infinities and NaNs order like their bits, so one integer maximum finds all three cases.
inline constexpr uint32_t kPoisonBits = std::bit_cast<uint32_t>(0x1p124F);
inline constexpr uint32_t kZeroBits = std::bit_cast<uint32_t>(0x1p-100F);
inline constexpr uint32_t kInfinityBits = 0x7F800000U;

constexpr int lowest_code(int bits) { return -(1 << (bits - 1)); }

// Orthonormal Walsh-Hadamard transform, its own inverse. Step 1.
void rotate(GroupValues v);

void add(GroupValues v, const float* addend);

// Steps 3 to 5: writes the packed codes, returns the scale (bf16 bits), and, unless residual is null, leaves in it
// what the codes do not say. `v` already holds rotated values plus residual. Poisoned and zero groups included.
uint16_t encode_group(ConstGroupValues v, int bits, uint8_t* codes, float* residual);

// Rotated-domain values of a coded group: code * scale. Any bytes are valid input; a scale that is not finite gives
// values that are not finite.
void decode_group(const uint8_t* codes, uint16_t scale, int bits, GroupValues v);

// A group whose values cannot be coded: any of them not finite, or 2^124 and more.
bool is_poisoned(ConstGroupValues v);
bool all_finite(ConstGroupValues v);
constexpr bool is_poisoned_scale(uint16_t scale) { return (scale & 0x7F80U) == 0x7F80U; }

// Scales below 2^118: nothing that 64 codes of up to 8 bits make of them, rotated or not, leaves the finite numbers.
// Encoders write larger ones only for values near the limit of 2^124; other bytes may hold any.
constexpr bool is_moderate_scale(uint16_t scale) { return (scale & 0x7FFFU) < 0x7A80U; }

}  // namespace echo_comm::core
