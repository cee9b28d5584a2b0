// How residuals are kept between calls (numerics.md section 8).
//
// Memory of a residual of N groups: the values of all groups, 64 each in element order, then, for int8 and int16, the
// scale (bf16) of each group. Bytes of zero mean that nothing is owed.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "codec/element.hpp"
#include "codec/group.hpp"
#include "wire/format.hpp"
#include "wire/layout.hpp"

namespace echo_comm::core {

enum class Store : uint8_t { kFp32 = 1, kInt8 = 2, kInt16 = 3 };

// Groups whose values are all smaller are kept as zeros: their scale would come near the denormals.
inline constexpr uint32_t kZeroResidualBits = std::bit_cast<uint32_t>(0x1p-110F);

constexpr int64_t value_bytes(Store store) { return store == Store::kFp32 ? 4 : store == Store::kInt16 ? 2 : 1; }
constexpr int64_t residual_bytes(int64_t groups, Store store) {
  return groups * (kGroup * value_bytes(store) + (store == Store::kFp32 ? 0 : kScaleBytes));
}
constexpr float largest_stored(Store store) { return store == Store::kInt8 ? 127.0F : 32767.0F; }

// Where the residual of one group lies; false: there is none.
struct GroupResidual {
  Store store = Store::kFp32;
  std::byte* values = nullptr;
  std::byte* scale = nullptr;  // int8 and int16

  explicit operator bool() const { return values != nullptr; }
};

// A residual of `groups` groups; null: none. Its indices may start at group `first`: that of one part of a tensor.
struct Residual {
  std::byte* base = nullptr;
  int64_t groups = 0;
  int64_t first = 0;

  [[nodiscard]] GroupResidual of(int64_t index, Store store) const {
    const int64_t bytes = kGroup * value_bytes(store);
    const int64_t at = first + index;
    return {store, base + at * bytes, base + groups * bytes + at * kScaleBytes};
  }
};

// Residuals of this rank in the rotated domain.
struct Residuals {
  Store store = Store::kFp32;
  Residual sender;  // group 0 of the tensor first
  Residual owner;   // group owned.begin first
  GroupRange owned;

  [[nodiscard]] GroupResidual sender_of(int64_t group) const {
    return sender.base == nullptr ? GroupResidual{} : sender.of(group, store);
  }
  [[nodiscard]] GroupResidual owner_of(int64_t group) const {
    return owner.base == nullptr || !owned.contains(group) ? GroupResidual{} : owner.of(group - owned.begin, store);
  }
};

void load_residual(const GroupResidual& residual, GroupValues e);
// What is not finite is not kept: the group's decode will drop it anyway.
void store_residual(ConstGroupValues e, const GroupResidual& residual);
void clear_residual(const GroupResidual& residual);

// The scale of a group's residual from its largest magnitude (as fp32 bits): bf16, 0 for a group kept as zeros.
inline uint16_t residual_scale(uint32_t magnitude, Store store) {
  if (magnitude < kZeroResidualBits || magnitude >= kInfinityBits) return 0;
  return float_to_bf16_up(std::bit_cast<float>(magnitude) / largest_stored(store));
}

}  // namespace echo_comm::core
