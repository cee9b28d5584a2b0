#include <array>
#include <cstdint>

#include "api/handles.hpp"

namespace echo_comm::core {
namespace {

// The text of the last error belongs to the thread, as errno does; the C interface leaves no other place for it.
thread_local std::string last_error_text;

constexpr bool same(ErrorCode code, echo_result_t result) { return static_cast<int>(code) == static_cast<int>(result); }
static_assert(same(ErrorCode::kArgument, ECHO_ERROR_ARGUMENT) && same(ErrorCode::kState, ECHO_ERROR_STATE) &&
              same(ErrorCode::kMismatch, ECHO_ERROR_MISMATCH) && same(ErrorCode::kTimeout, ECHO_ERROR_TIMEOUT) &&
              same(ErrorCode::kPeer, ECHO_ERROR_PEER) && same(ErrorCode::kAborted, ECHO_ERROR_ABORTED) &&
              same(ErrorCode::kSystem, ECHO_ERROR_SYSTEM) && same(ErrorCode::kMemory, ECHO_ERROR_MEMORY) &&
              same(ErrorCode::kInternal, ECHO_ERROR_INTERNAL));
static_assert(static_cast<int>(Dtype::kFloat16) == ECHO_FLOAT16 && static_cast<int>(Dtype::kFloat32) == ECHO_FLOAT32 &&
              static_cast<int>(Dtype::kBfloat16) == ECHO_BFLOAT16);
static_assert(kGroup == ECHO_GROUP && kExactBits == ECHO_BITS_EXACT);

}  // namespace

echo_result_t remember(ErrorCode code, const char* error_text) noexcept {
  try {
    last_error_text = error_text;
  } catch (...) {
    last_error_text.clear();
  }
  return static_cast<echo_result_t>(code);
}

bool read_switch(echo_switch_t value, bool otherwise, const char* name) {
  if (value == ECHO_DEFAULT) return otherwise;
  require(value == ECHO_ON || value == ECHO_OFF, ErrorCode::kArgument, name, ": ", static_cast<int>(value),
          " is not ECHO_DEFAULT (0), ECHO_ON (1) or ECHO_OFF (2)");
  return value == ECHO_ON;
}

Dtype read_dtype(echo_dtype_t dtype) {
  const int value = dtype;
  require(is_dtype(value), ErrorCode::kArgument, "dtype: ", value,
          " is not ECHO_FLOAT16 (6), ECHO_FLOAT32 (7) or ECHO_BFLOAT16 (9)");
  return static_cast<Dtype>(value);
}

Format read_format(int bits, int default_bits, echo_switch_t rotation) {
  const int wanted = bits == 0 ? default_bits : bits;
  require(is_bits(wanted), ErrorCode::kArgument, "bits: ", bits, " is not 3, 4, 5, 6, 8 or 16 (exact)");
  return {wanted, read_switch(rotation, true, "rotation")};
}

std::optional<Store> read_store(echo_store_t store) {
  switch (store) {
    case ECHO_STORE_AUTO: return std::nullopt;
    case ECHO_STORE_FP32: return Store::kFp32;
    case ECHO_STORE_INT8: return Store::kInt8;
    case ECHO_STORE_INT16: return Store::kInt16;
  }
  fail(ErrorCode::kArgument, "store: ", static_cast<int>(store),
       " is not ECHO_STORE_AUTO (0), _FP32 (1), _INT8 (2) or _INT16 (3)");
}

int64_t read_count(std::size_t count, const char* name) {
  require(count <= static_cast<std::size_t>(kMaxCount), ErrorCode::kArgument, name, ": ", count,
          " is more than the largest tensor of ", kMaxCount, " elements");
  return static_cast<int64_t>(count);
}

void check_buffer(const void* buffer, int64_t elements, Dtype dtype, const char* name) {
  if (elements == 0) return;
  require(buffer != nullptr, ErrorCode::kArgument, name, " is NULL, but there are ", elements, " elements");
  const auto address = reinterpret_cast<uintptr_t>(buffer);
  require(address % element_size(dtype) == 0, ErrorCode::kArgument, name, " is not aligned to the ",
          element_size(dtype), " bytes of a ", dtype_name(dtype), " element");
}

}  // namespace echo_comm::core

const char* echo_result_string(echo_result_t result) {
  static constexpr std::array kNames = {"success", "argument", "state",  "mismatch", "timeout",
                                        "peer",    "aborted",  "system", "memory",   "internal"};
  const auto index = static_cast<std::size_t>(result);
  return index < kNames.size() ? kNames[index] : "unknown";
}

const char* echo_last_error(void) { return echo_comm::core::last_error_text.c_str(); }

int echo_version(void) { return ECHO_VERSION; }
