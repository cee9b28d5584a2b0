// Measures one case of the codec: first whether it is right, then its time in turn with a copy of the tensor.
#pragma once

#include <cstdint>

#include "echo_perf/codec_case.hpp"

namespace echo_comm::tools {

struct CodecRow {
  CodecCase what;
  Footprint footprint;
  double codec_s = 0;       // medians of one call
  double memcpy_s = 0;      // of a copy of the tensor by the same threads
  std::uint64_t wrong = 0;  // bytes that are not those of the reference codec

  // GB/s (10^9) of the tensor.
  [[nodiscard]] double gbps() const { return static_cast<double>(footprint.tensor) / codec_s / 1e9; }
  [[nodiscard]] double memcpy_gbps() const { return static_cast<double>(footprint.tensor) / memcpy_s / 1e9; }
  [[nodiscard]] double memcpy_ratio() const { return codec_s / memcpy_s; }
  [[nodiscard]] double ns_per_value() const { return codec_s * 1e9 / static_cast<double>(what.values); }
};

// seconds: how long both are timed together. Throws Exception when the library fails.
CodecRow measure_codec(const CodecCase& what, double seconds);

}  // namespace echo_comm::tools
