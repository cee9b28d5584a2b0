// Arithmetic on sizes that says so instead of wrapping around.
#pragma once

#include <cstdint>

#include "base/error.hpp"

namespace echo_comm::core {

inline int64_t checked_mul(int64_t a, int64_t b, const char* what) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) {
    fail(ErrorCode::kArgument, what, ": ", a, " * ", b, " does not fit 64 bits");
  }
  return product;
}

inline int64_t checked_add(int64_t a, int64_t b, const char* what) {
  int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) {
    fail(ErrorCode::kArgument, what, ": ", a, " + ", b, " does not fit 64 bits");
  }
  return sum;
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

constexpr int64_t align_up(int64_t bytes, int64_t alignment) { return ceil_div(bytes, alignment) * alignment; }

}  // namespace echo_comm::core
