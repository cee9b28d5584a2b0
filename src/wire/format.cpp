#include "wire/format.hpp"

#include "base/error.hpp"

namespace echo_comm::core {

bool is_dtype(int value) {
  return value == static_cast<int>(Dtype::kFloat16) || value == static_cast<int>(Dtype::kFloat32) ||
         value == static_cast<int>(Dtype::kBfloat16);
}

int64_t element_size(Dtype dtype) { return dtype == Dtype::kFloat32 ? 4 : 2; }

const char* dtype_name(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat16: return "fp16";
    case Dtype::kFloat32: return "fp32";
    case Dtype::kBfloat16: return "bf16";
  }
  return "unknown";
}

bool is_bits(int bits) { return (bits >= 3 && bits <= 6) || bits == 8 || bits == kExactBits; }

std::string format_name(Format format) {
  if (format.exact()) return "exact";
  return text("q", format.bits, format.rotation ? "" : " without rotation");
}

int64_t encoded_size(const GroupLayout& layout, GroupRange range, Format format, Dtype dtype) {
  if (format.exact()) return layout.elements(range) * element_size(dtype);
  return range.size() * (code_bytes(format.bits) + kScaleBytes);
}

int64_t groups_that_fit(int64_t bytes, Format format, Dtype dtype) {
  const int64_t group_bytes = format.exact() ? kGroup * element_size(dtype) : code_bytes(format.bits) + kScaleBytes;
  return bytes / group_bytes;
}

}  // namespace echo_comm::core
