// The three sweeps over ranges: every element written, nothing else touched, ranges independent of each other.
// Bit equality with the independent model over the whole product of options is tested through the Python operators
// (tests/python/test_oracle.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "codec/codec.hpp"
#include "codec/element.hpp"

namespace echo_comm::core {
namespace {

constexpr std::byte kSentinel{0xA5};

std::vector<float> random_values(std::size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& x : values) x = normal(random);
  return values;
}

std::vector<std::byte> stored(const std::vector<float>& values, Dtype dtype) {
  const auto size = static_cast<std::size_t>(element_size(dtype));
  std::vector<std::byte> bytes(values.size() * size);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == Dtype::kFloat32) {
      std::memcpy(&bytes[i * size], &values[i], size);
    } else {
      const uint16_t half = dtype == Dtype::kFloat16 ? float_to_fp16(values[i]) : float_to_bf16(values[i]);
      std::memcpy(&bytes[i * size], &half, size);
    }
  }
  return bytes;
}

std::byte* as_bytes(std::vector<float>& values) { return reinterpret_cast<std::byte*>(values.data()); }

struct Case {
  int64_t count;
  int64_t row_length;
  int bits;
  bool rotation;
  Dtype dtype;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int64_t count : {0, 1, 63, 64, 65, 127, 128, 129, 1000}) {
    for (const int bits : {3, 4, 5, 6, 8, kExactBits}) {
      for (const bool rotation : {false, true}) {
        for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBfloat16, Dtype::kFloat16}) {
          all.push_back({count, 0, bits, rotation, dtype});
          if (count == 1000) all.push_back({count, 100, bits, rotation, dtype});
        }
      }
    }
  }
  return all;
}

std::string name(const Case& c) {
  return "count " + std::to_string(c.count) + " row " + std::to_string(c.row_length) + " bits " +
         std::to_string(c.bits) + (c.rotation ? " rotated " : " ") + dtype_name(c.dtype);
}

// A7, A8, A12, B2: nothing past the end is read into a code or written to.
TEST(Sweeps, WriteEveryElementAndNothingElse) {
  for (const Case& c : cases()) {
    const GroupLayout layout(c.count, c.row_length);
    const Block block{layout, {0, layout.groups()}, {c.bits, c.rotation}, c.dtype};
    const std::vector<float> values = random_values(static_cast<std::size_t>(c.count), 1);
    std::vector<std::byte> in = stored(values, c.dtype);
    in.resize(in.size() + 64, std::byte{0x7E});  // large values just past the end
    const auto payload_bytes = static_cast<std::size_t>(block.encoded_bytes());
    std::vector<std::byte> payload(payload_bytes + 64, kSentinel);
    EXPECT_EQ(reference_codec().encode(block, in.data(), {}, payload.data()), 0);
    for (std::size_t i = payload_bytes; i < payload.size(); ++i) ASSERT_EQ(payload[i], kSentinel) << name(c);

    const auto out_bytes = static_cast<std::size_t>(c.count * element_size(c.dtype));
    std::vector<std::byte> out(out_bytes + 64, kSentinel);
    const std::byte* parts[] = {payload.data()};
    EXPECT_EQ(reference_codec().decode(block, parts, {}, {}, out.data()), 0);
    for (std::size_t i = out_bytes; i < out.size(); ++i) ASSERT_EQ(out[i], kSentinel) << name(c);
    float largest = 0;
    for (const float x : values) largest = std::max(largest, std::abs(x));
    const float step = c.bits == kExactBits ? 0.0F : 8 * largest * std::exp2(1.0F - static_cast<float>(c.bits));
    for (std::size_t i = 0; i < values.size(); ++i) {
      float got = 0;
      if (c.dtype == Dtype::kFloat32) {
        std::memcpy(&got, &out[4 * i], 4);
      } else {
        uint16_t half = 0;
        std::memcpy(&half, &out[2 * i], 2);
        got = c.dtype == Dtype::kFloat16 ? fp16_to_float(half) : bf16_to_float(half);
      }
      ASSERT_NEAR(got, values[i], step + 0.02F * std::abs(values[i])) << name(c) << " element " << i;
    }
  }
}

// A range gives the bytes that the whole tensor has there: codes of a token never depend on its neighbours.
TEST(Sweeps, EncodeTheSameGroupsInAnyRange) {
  const std::vector<float> values = random_values(1000, 2);
  const GroupLayout layout(1000, 100);
  const Format format{4, true};
  const Block whole{layout, {0, layout.groups()}, format, Dtype::kFloat32};
  std::vector<std::byte> all(static_cast<std::size_t>(whole.encoded_bytes()));
  reference_codec().encode(whole, values.data(), {}, all.data());
  for (int64_t group = 0; group < layout.groups(); ++group) {
    const Block one{layout, {group, group + 1}, format, Dtype::kFloat32};
    std::vector<std::byte> bytes(static_cast<std::size_t>(one.encoded_bytes()));
    reference_codec().encode(one, values.data(), {}, bytes.data());
    EXPECT_EQ(std::memcmp(bytes.data(), &all[static_cast<std::size_t>(group * 32)], 32), 0);
    EXPECT_EQ(std::memcmp(&bytes[32], &all[static_cast<std::size_t>(layout.groups() * 32 + group * 2)], 2), 0);
  }
}

// A5: garbage in another row does not move a row's codes, at widths that are no multiple of 64.
TEST(Sweeps, RowsDoNotSeeTheirNeighbours) {
  constexpr int64_t kRow = 100;
  std::vector<float> values = random_values(5 * kRow, 3);
  const GroupLayout layout(5 * kRow, kRow);
  const Block block{layout, {0, layout.groups()}, {4, true}, Dtype::kFloat32};
  std::vector<std::byte> clean(static_cast<std::size_t>(block.encoded_bytes()));
  reference_codec().encode(block, values.data(), {}, clean.data());
  for (const float garbage : {NAN, INFINITY, 1e38F}) {
    std::fill(values.begin() + 3 * kRow, values.end(), garbage);
    std::vector<std::byte> dirty(clean.size());
    EXPECT_EQ(reference_codec().encode(block, values.data(), {}, dirty.data()), 4) << "two rows of two groups";
    EXPECT_EQ(std::memcmp(clean.data(), dirty.data(), 3 * 2 * 32), 0);
  }
}

// B8: same input, same bytes, whatever the memory held before.
TEST(Sweeps, LeaveNoUninitialisedByteOnTheWire) {
  for (const Case& c : cases()) {
    const GroupLayout layout(c.count, c.row_length);
    const Block block{layout, {0, layout.groups()}, {c.bits, c.rotation}, c.dtype};
    const std::vector<std::byte> in = stored(random_values(static_cast<std::size_t>(c.count), 4), c.dtype);
    const auto bytes = static_cast<std::size_t>(block.encoded_bytes());
    std::vector<std::byte> zeros(bytes, std::byte{0});
    std::vector<std::byte> ones(bytes, std::byte{0xFF});
    reference_codec().encode(block, in.data(), {}, zeros.data());
    reference_codec().encode(block, in.data(), {}, ones.data());
    ASSERT_EQ(zeros, ones) << name(c);
  }
}

// Poisoned groups come out as canonical NaN of the type, their residuals become 0, the neighbours are untouched.
TEST(Sweeps, DecodePoisonedGroupsToCanonicalNan) {
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBfloat16, Dtype::kFloat16}) {
    std::vector<float> values = random_values(192, 5);
    values[70] = INFINITY;
    const std::vector<std::byte> in = stored(values, dtype);
    const GroupLayout layout(192, 0);
    const Block block{layout, {0, 3}, {4, true}, dtype};
    std::vector<std::byte> payload(static_cast<std::size_t>(block.encoded_bytes()));
    EXPECT_EQ(reference_codec().encode(block, in.data(), {}, payload.data()), 1);
    std::vector<float> sender(192, 0.25F);
    std::vector<float> owner(64, 0.5F);
    const Residuals residuals{Store::kFp32, {as_bytes(sender), 3}, {as_bytes(owner), 1}, {1, 2}};
    std::vector<std::byte> out(in.size());
    const std::byte* parts[] = {payload.data()};
    EXPECT_EQ(reference_codec().decode(block, parts, residuals, {}, out.data()), 1);
    for (std::size_t i = 0; i < 192; ++i) {
      const bool poisoned = i >= 64 && i < 128;
      ASSERT_EQ(sender[i], poisoned ? 0.0F : 0.25F);
      uint32_t bits = 0;
      const auto size = static_cast<std::size_t>(element_size(dtype));
      std::memcpy(&bits, &out[i * size], size);
      const uint32_t nan = dtype == Dtype::kFloat32 ? 0x7FC00000U : dtype == Dtype::kFloat16 ? 0x7E00U : 0x7FC0U;
      ASSERT_EQ(bits == nan, poisoned) << dtype_name(dtype) << " element " << i;
    }
    EXPECT_TRUE(std::ranges::all_of(owner, [](float x) { return x == 0.0F; }));
  }
}

// A coded sum just below the limit may round up to 2^124: it was coded, so it is delivered.
TEST(Sweeps, DeliverWhatTheOwnerCouldCode) {
  std::vector<float> values(64, 1.0F);
  values[9] = -std::nextafter(0x1p124F, 0.0F);
  const GroupLayout layout(64, 0);
  const Block block{layout, {0, 1}, {4, false}, Dtype::kFloat32};
  std::vector<std::byte> payload(static_cast<std::size_t>(block.encoded_bytes()));
  EXPECT_EQ(reference_codec().encode(block, values.data(), {}, payload.data()), 0);
  std::vector<float> out(64);
  const std::byte* parts[] = {payload.data()};
  EXPECT_EQ(reference_codec().decode(block, parts, {}, {}, out.data()), 0);
  EXPECT_EQ(out[9], -0x1p124F);
}

// numerics.md section 3, exact path: what is owed never turns a finite value into an infinity.
TEST(Sweeps, ExactPathSaturatesFiniteValuesAndKeepsTheRest) {
  std::vector<float> values(64, 65504.0F);
  values[5] = INFINITY;
  const std::vector<std::byte> in = stored(values, Dtype::kFloat16);
  const GroupLayout layout(64, 0);
  const Block block{layout, {0, 1}, {kExactBits, false}, Dtype::kFloat16};
  std::vector<float> sender(64, 100.0F);
  Residuals residuals;
  residuals.sender = {as_bytes(sender), 1};
  std::vector<std::byte> payload(static_cast<std::size_t>(block.encoded_bytes()));
  reference_codec().encode(block, in.data(), residuals, payload.data());
  for (std::size_t i = 0; i < 64; ++i) {
    uint16_t half = 0;
    std::memcpy(&half, &payload[2 * i], 2);
    ASSERT_EQ(half, i == 5 ? 0x7C00 : 0x7BFF);
    if (i != 5) {
      ASSERT_EQ(sender[i], 100.0F) << "all that was owed still is";
    }
  }
}

}  // namespace
}  // namespace echo_comm::core
