#include "codec/residual.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "codec/element.hpp"

namespace echo_comm::core {
namespace {

template <typename Value>
void load_values(const GroupResidual& residual, float scale, GroupValues e) {
  std::array<Value, kGroup> values;
  std::memcpy(values.data(), residual.values, sizeof values);
  for (int i = 0; i < kGroup; ++i) e[i] = static_cast<float>(values[i]) * scale;
}

template <typename Value>
void store_values(ConstGroupValues e, float inverse, const GroupResidual& residual) {
  const float largest = largest_stored(residual.store);
  std::array<Value, kGroup> values;
  for (int i = 0; i < kGroup; ++i) {
    values[i] = static_cast<Value>(std::clamp(round_half_even(e[i] * inverse), -largest, largest));
  }
  std::memcpy(residual.values, values.data(), sizeof values);
}

}  // namespace

void load_residual(const GroupResidual& residual, GroupValues e) {
  if (residual.store == Store::kFp32) {
    std::memcpy(e.data(), residual.values, e.size_bytes());
    return;
  }
  uint16_t scale_bits = 0;
  std::memcpy(&scale_bits, residual.scale, sizeof scale_bits);
  const float scale = bf16_to_float(scale_bits);
  residual.store == Store::kInt8 ? load_values<int8_t>(residual, scale, e) : load_values<int16_t>(residual, scale, e);
}

void store_residual(ConstGroupValues e, const GroupResidual& residual) {
  if (residual.store == Store::kFp32) {
    std::memcpy(residual.values, e.data(), e.size_bytes());
    return;
  }
  uint32_t magnitude = 0;
  for (const float x : e) magnitude = std::max(magnitude, magnitude_bits(x));
  const uint16_t scale_bits = residual_scale(magnitude, residual.store);
  if (scale_bits == 0) {
    clear_residual(residual);
    return;
  }
  const float inverse = 1.0F / bf16_to_float(scale_bits);
  residual.store == Store::kInt8 ? store_values<int8_t>(e, inverse, residual)
                                 : store_values<int16_t>(e, inverse, residual);
  std::memcpy(residual.scale, &scale_bits, sizeof scale_bits);
}

void clear_residual(const GroupResidual& residual) {
  if (!residual) return;
  std::memset(residual.values, 0, static_cast<std::size_t>(kGroup * value_bytes(residual.store)));
  if (residual.store != Store::kFp32) std::memset(residual.scale, 0, kScaleBytes);
}

}  // namespace echo_comm::core
