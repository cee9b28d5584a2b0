// What the tests of the codecs share: elements of every type, residuals, and names.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "codec/codec.hpp"
#include "codec/dispatch.hpp"
#include "codec/element.hpp"

namespace echo_comm::core {

using Bytes = std::vector<std::byte>;

inline constexpr Dtype kDtypes[] = {Dtype::kFloat32, Dtype::kBfloat16, Dtype::kFloat16};
inline constexpr int kCodedBits[] = {3, 4, 5, 6, 8};
inline constexpr int kEveryBits[] = {3, 4, 5, 6, 8, kExactBits};
inline constexpr Store kStores[] = {Store::kFp32, Store::kInt8, Store::kInt16};
inline constexpr std::optional<Store> kFeedbacks[] = {std::nullopt, Store::kFp32, Store::kInt8, Store::kInt16};

inline const char* store_name(Store store) {
  switch (store) {
    case Store::kFp32: return "fp32";
    case Store::kInt8: return "int8";
    case Store::kInt16: return "int16";
  }
  return "unknown";
}

// One cell of the product of options.
struct Cell {
  int64_t count = 0;
  int64_t row_length = 0;
  Format format;
  Dtype dtype = Dtype::kFloat32;
  std::optional<Store> feedback;

  [[nodiscard]] GroupLayout layout() const { return {count, row_length}; }
  [[nodiscard]] Block block() const { return {layout(), {0, layout().groups()}, format, dtype}; }
};

inline std::string describe(const Cell& cell) {
  return "count " + std::to_string(cell.count) + " row " + std::to_string(cell.row_length) + " " +
         format_name(cell.format) + " " + dtype_name(cell.dtype) + " feedback " +
         (cell.feedback ? store_name(*cell.feedback) : "off");
}

// Every width, rotation, type and feedback for one shape.
inline std::vector<Cell> cells(int64_t count, int64_t row_length) {
  std::vector<Cell> all;
  for (const int bits : kEveryBits) {
    for (const bool rotation : {true, false}) {
      for (const Dtype dtype : kDtypes) {
        for (const auto feedback : kFeedbacks) all.push_back({count, row_length, {bits, rotation}, dtype, feedback});
      }
    }
  }
  return all;
}

inline std::size_t to_size(int64_t value) { return static_cast<std::size_t>(value); }

inline Bytes to_elements(std::span<const float> values, Dtype dtype) {
  const std::size_t size = to_size(element_size(dtype));
  Bytes bytes(values.size() * size);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const uint32_t bits = dtype == Dtype::kFloat32   ? std::bit_cast<uint32_t>(values[i])
                          : dtype == Dtype::kFloat16 ? float_to_fp16(values[i])
                                                     : float_to_bf16(values[i]);
    std::memcpy(&bytes[i * size], &bits, size);
  }
  return bytes;
}

inline std::vector<float> from_elements(std::span<const std::byte> bytes, Dtype dtype) {
  const std::size_t size = to_size(element_size(dtype));
  std::vector<float> values(bytes.size() / size);
  for (std::size_t i = 0; i < values.size(); ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, &bytes[i * size], size);
    values[i] = dtype == Dtype::kFloat32   ? std::bit_cast<float>(bits)
                : dtype == Dtype::kFloat16 ? fp16_to_float(static_cast<uint16_t>(bits))
                                           : bf16_to_float(static_cast<uint16_t>(bits));
  }
  return values;
}

// Normal values whose size changes from group to group, from 2^least to 2^most.
inline std::vector<float> normal_values(int64_t count, uint32_t seed, int least = -8, int most = 8) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(least, most);
  std::vector<float> values(to_size(count));
  float factor = 1;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i % kGroup == 0) factor = std::exp2(static_cast<float>(exponent(random)));
    values[i] = normal(random) * factor;
  }
  return values;
}

inline Bytes normal_elements(const Cell& cell, uint32_t seed) {
  return to_elements(normal_values(cell.count, seed), cell.dtype);
}

// What could be owed after some calls.
inline Bytes normal_residual(int64_t groups, Store store, uint32_t seed) {
  const std::vector<float> values = normal_values(groups * kGroup, seed, -6, 2);
  Bytes bytes(to_size(residual_bytes(groups, store)));
  const Residual residual{bytes.data(), groups};
  for (int64_t group = 0; group < groups; ++group) {
    store_residual(ConstGroupValues(&values[to_size(group * kGroup)], kGroup), residual.of(group, store));
  }
  return bytes;
}

inline std::array<float, kGroup> owed(Bytes& bytes, int64_t groups, int64_t group, Store store) {
  std::array<float, kGroup> e;
  load_residual(Residual{bytes.data(), groups}.of(group, store), e);
  return e;
}

inline float largest_magnitude(std::span<const float> values) {
  float largest = 0;
  for (const float x : values) largest = std::max(largest, std::abs(x));
  return largest;
}

// A suite that runs for each codec of this processor.
class PerCodec : public ::testing::TestWithParam<const Codec*> {
 protected:
  static const Codec& codec() { return *GetParam(); }

  // Without residuals.
  static Bytes encoded(const Block& block, const Bytes& in) {
    Bytes payload(to_size(block.encoded_bytes()));
    codec().encode(block, in.data(), {}, payload.data());
    return payload;
  }
  static Bytes decoded(const Block& block, const Bytes& payload) {
    Bytes out(to_size(block.layout.count() * element_size(block.dtype)));
    const std::byte* payloads[] = {payload.data()};
    codec().decode(block, payloads, {}, {}, out.data());
    return out;
  }
};

inline std::string codec_of(const ::testing::TestParamInfo<const Codec*>& info) { return info.param->name(); }

}  // namespace echo_comm::core
