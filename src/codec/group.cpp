#include "codec/group.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "codec/element.hpp"

namespace echo_comm::core {
namespace {

uint32_t largest_magnitude(ConstGroupValues v) {
  uint32_t largest = 0;
  for (const float x : v) largest = std::max(largest, magnitude_bits(x));
  return largest;
}

// The element with the largest magnitude, the lowest index on ties.
float first_with_magnitude(ConstGroupValues v, uint32_t magnitude) {
  return *std::ranges::find_if(v, [=](float x) { return magnitude_bits(x) == magnitude; });
}

// Plane of bit `bit`: bit i of the 8 bytes belongs to element i.
void pack_plane(const uint8_t* stored, int bit, uint8_t* plane) {
  for (int byte = 0; byte < kGroup / 8; ++byte) {
    unsigned packed = 0;
    for (int i = 0; i < 8; ++i) packed |= ((unsigned{stored[8 * byte + i]} >> bit) & 1U) << i;
    plane[byte] = static_cast<uint8_t>(packed);
  }
}

void unpack_plane(const uint8_t* plane, int bit, uint8_t* stored) {
  for (int i = 0; i < kGroup; ++i) {
    stored[i] = static_cast<uint8_t>(stored[i] | (((unsigned{plane[i / 8]} >> (i % 8)) & 1U) << bit));
  }
}

constexpr int64_t kNibbleBytes = kGroup / 2;
constexpr int64_t kPlaneBytes = kGroup / 8;

// Layout of stored values: FORMAT.md.
void pack(const std::array<uint8_t, kGroup>& stored, int bits, uint8_t* codes) {
  if (bits == 8) {
    std::memcpy(codes, stored.data(), kGroup);
    return;
  }
  int bit = 0;
  if (bits >= 4) {
    for (int i = 0; i < kGroup / 2; ++i) {
      codes[i] = static_cast<uint8_t>((stored[2 * i] & 15U) | (unsigned{stored[2 * i + 1]} & 15U) << 4);
    }
    codes += kNibbleBytes;
    bit = 4;
  }
  for (; bit < bits; ++bit, codes += kPlaneBytes) pack_plane(stored.data(), bit, codes);
}

void unpack(const uint8_t* codes, int bits, std::array<uint8_t, kGroup>& stored) {
  if (bits == 8) {
    std::memcpy(stored.data(), codes, kGroup);
    return;
  }
  int bit = 0;
  if (bits >= 4) {
    for (int i = 0; i < kGroup / 2; ++i) {
      stored[2 * i] = codes[i] & 15U;
      stored[2 * i + 1] = static_cast<uint8_t>(codes[i] >> 4);
    }
    codes += kNibbleBytes;
    bit = 4;
  } else {
    stored.fill(0);
  }
  for (; bit < bits; ++bit, codes += kPlaneBytes) unpack_plane(codes, bit, stored.data());
}

// All codes 0 under the given scale, nothing owed.
uint16_t encode_without_values(uint16_t scale, int bits, uint8_t* codes, float* residual) {
  std::array<uint8_t, kGroup> stored;
  stored.fill(static_cast<uint8_t>(-lowest_code(bits)));
  pack(stored, bits, codes);
  if (residual != nullptr) std::fill_n(residual, kGroup, 0.0F);
  return scale;
}

}  // namespace

void rotate(GroupValues v) {
  for (float& x : v) x *= 0.125F;
  for (int stride = 1; stride < kGroup; stride *= 2) {
    for (int block = 0; block < kGroup; block += 2 * stride) {
      for (int i = block; i < block + stride; ++i) {
        const float a = v[i];
        const float b = v[i + stride];
        v[i] = a + b;
        v[i + stride] = a - b;
      }
    }
  }
}

void add(GroupValues v, const float* addend) {
  for (int i = 0; i < kGroup; ++i) v[i] += addend[i];
}

bool is_poisoned(ConstGroupValues v) { return largest_magnitude(v) >= kPoisonBits; }

bool all_finite(ConstGroupValues v) { return largest_magnitude(v) < kInfinityBits; }

uint16_t encode_group(ConstGroupValues v, int bits, uint8_t* codes, float* residual) {
  const uint32_t magnitude = largest_magnitude(v);
  if (magnitude >= kPoisonBits) return encode_without_values(kPoisonedScale, bits, codes, residual);
  if (magnitude < kZeroBits) return encode_without_values(0, bits, codes, residual);

  const auto lowest = static_cast<float>(lowest_code(bits));
  const float extremum = first_with_magnitude(v, magnitude);
  const uint16_t scale_bits = float_to_bf16_up(extremum / lowest);  // 3: the extremum gets the lowest code
  const float scale = bf16_to_float(scale_bits);
  const float inverse = 1.0F / scale;

  std::array<uint8_t, kGroup> stored;
  for (int i = 0; i < kGroup; ++i) {
    const float code = std::clamp(round_half_even(v[i] * inverse), lowest, -lowest - 1.0F);  // 4
    stored[i] = static_cast<uint8_t>(static_cast<int>(code - lowest));
    if (residual != nullptr) residual[i] = v[i] - code * scale;  // 5
  }
  pack(stored, bits, codes);
  return scale_bits;
}

void decode_group(const uint8_t* codes, uint16_t scale_bits, int bits, GroupValues v) {
  std::array<uint8_t, kGroup> stored;
  unpack(codes, bits, stored);
  const float scale = bf16_to_float(scale_bits);
  const int lowest = lowest_code(bits);
  for (int i = 0; i < kGroup; ++i) v[i] = static_cast<float>(static_cast<int>(stored[i]) + lowest) * scale;
}

}  // namespace echo_comm::core
