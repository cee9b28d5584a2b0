// Formats: how many bytes the codes of a range take. FORMAT.md shows the bytes.
#pragma once

#include <cstdint>
#include <string>

#include "wire/layout.hpp"

namespace echo_comm::core {

// Element types; the numbers are those of echo_dtype_t and ncclDataType_t.
enum class Dtype : uint8_t { kFloat16 = 6, kFloat32 = 7, kBfloat16 = 9 };

[[nodiscard]] bool is_dtype(int value);
[[nodiscard]] int64_t element_size(Dtype dtype);
[[nodiscard]] const char* dtype_name(Dtype dtype);

// `bits` of the exact path: elements travel in the tensor's own type.
inline constexpr int kExactBits = 16;

struct Format {
  int bits = 4;
  bool rotation = true;

  [[nodiscard]] bool exact() const { return bits == kExactBits; }
  friend bool operator==(const Format&, const Format&) = default;
};

[[nodiscard]] bool is_bits(int bits);
[[nodiscard]] std::string format_name(Format format);

// Bytes of the codes of one group: 64 codes of `bits` bits.
[[nodiscard]] constexpr int64_t code_bytes(int bits) { return int64_t{8} * bits; }
inline constexpr int64_t kScaleBytes = 2;

// Bytes of the payload of a range: all codes, then all scales; on the exact path the elements.
[[nodiscard]] int64_t encoded_size(const GroupLayout& layout, GroupRange range, Format format, Dtype dtype);

// Most groups whose payload surely fits `bytes`; at least 1 for any slot the transports allow.
[[nodiscard]] int64_t groups_that_fit(int64_t bytes, Format format, Dtype dtype);

}  // namespace echo_comm::core
