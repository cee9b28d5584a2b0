// echo-perf codec: what one row measures, and the words for it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "echo_comm/echo.h"
#include "echo_perf/words.hpp"

namespace echo_comm::tools {

enum class Stage { kEncode, kReduce, kDecode };

using FeedbackStore = std::optional<echo_store_t>;  // nullopt: no feedback

struct CodecCase {
  Stage stage = Stage::kEncode;
  int bits = 4;
  bool rotation = true;
  FeedbackStore feedback = {};  // decode: none
  int ranks = 1;                // whose values are summed; more than 1 for reduce alone
  bool add = false;             // decode adds to the tensor
  echo_dtype_t dtype = ECHO_BFLOAT16;
  std::string target = {};  // name of a codec
  int threads = 1;
  std::int64_t values = 0;

  bool operator==(const CodecCase&) const = default;
};

inline const Words<Stage> kStages = {
    {"encode", Stage::kEncode}, {"reduce", Stage::kReduce}, {"decode", Stage::kDecode}};
inline const Words<int> kCodecBits = {{"3", 3}, {"4", 4}, {"5", 5}, {"6", 6}, {"8", 8}};
inline const Words<bool> kSwitches = {{"on", true}, {"off", false}};
inline const Words<FeedbackStore> kStores = {
    {"none", std::nullopt}, {"fp32", ECHO_STORE_FP32}, {"int8", ECHO_STORE_INT8}, {"int16", ECHO_STORE_INT16}};
inline const Words<echo_dtype_t> kCodecTypes = {
    {"bf16", ECHO_BFLOAT16}, {"half", ECHO_FLOAT16}, {"float", ECHO_FLOAT32}};

// Groups [begin, end) of a tensor.
struct GroupSpan {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  [[nodiscard]] std::int64_t size() const { return end - begin; }
  // The share of one of `parts` threads; empty when there are more threads than groups.
  [[nodiscard]] GroupSpan part(int index, int parts) const {
    return {begin + size() * index / parts, begin + size() * (index + 1) / parts};
  }
};

// A range of the C interface with all groups of a tensor of `values` elements.
echo_range_t whole_range(const CodecCase& what, std::int64_t values);

// Bytes of the arrays of one case.
struct Footprint {
  explicit Footprint(const CodecCase& what);

  // Bytes that the algorithm moves, per value: every byte that it must read or write counts once.
  [[nodiscard]] double traffic() const;
  // The same in copies of the tensor, which read and write each of its bytes: where memory alone would put the time.
  [[nodiscard]] double roofline_ratio() const { return traffic() * static_cast<double>(values) / (2.0 * tensor); }
  // Memory of the measurement.
  [[nodiscard]] std::int64_t memory() const;

  std::int64_t values;
  std::int64_t tensor;
  int tensor_passes;  // reads and writes of the tensor
  std::int64_t payload;
  int payloads;  // read or written
  std::int64_t residual;
  int residuals;  // encode: of the sender; reduce: of the owner too. Read and written
};

}  // namespace echo_comm::tools
