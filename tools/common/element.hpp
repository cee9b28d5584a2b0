// The element types of tensors as the tools see them: storage and conversion to and from fp32.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "echo_comm/echo.hpp"

namespace echo_comm::tools {

struct Float {
  using Stored = float;
  static float load(Stored stored) { return stored; }
  static Stored store(float x) { return x; }
};

struct Brain {
  using Stored = std::uint16_t;
  static float load(Stored stored) { return std::bit_cast<float>(std::uint32_t{stored} << 16); }
  // To nearest, ties to even. x finite: the tools make no other values.
  static Stored store(float x) {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    return static_cast<Stored>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
  }
};

struct Half {
  using Stored = std::uint16_t;
  static float load(Stored stored) {
    const std::uint32_t sign = std::uint32_t{stored & 0x8000U} << 16;
    const std::uint32_t magnitude = stored & 0x7FFFU;
    float value = static_cast<float>(magnitude) * 0x1p-24F;  // denormals count steps of 2^-24
    if (magnitude >= 0x0400U) value = std::bit_cast<float>((magnitude << 13) + 0x38000000U);  // exponent bias 15 -> 127
    if (magnitude >= 0x7C00U) value = magnitude == 0x7C00U ? INFINITY : NAN;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
  }
  // To nearest, ties to even. |x| < 65520.
  static Stored store(float x) {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
    const std::uint32_t sign = (bits >> 16) & 0x8000U;
    if (magnitude < 0x38800000U) {  // below 2^-14: adding 0.5 leaves the last bit at 2^-24
      return static_cast<Stored>(sign | (std::bit_cast<std::uint32_t>(std::fabs(x) + 0.5F) - 0x3F000000U));
    }
    return static_cast<Stored>(sign | ((magnitude - 0x38000000U + 0x0FFFU + ((magnitude >> 13) & 1U)) >> 13));
  }
};

// Calls body(E{}) with the type E of `dtype`.
template <class Body>
decltype(auto) with_element(echo_dtype_t dtype, Body&& body) {
  switch (dtype) {
    case ECHO_FLOAT16: return body(Half{});
    case ECHO_BFLOAT16: return body(Brain{});
    case ECHO_FLOAT32: break;
  }
  return body(Float{});
}

inline std::size_t element_size(echo_dtype_t dtype) { return dtype == ECHO_FLOAT32 ? 4 : 2; }

}  // namespace echo_comm::tools
