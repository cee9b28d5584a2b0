// Special values, in every codec: poisoned groups, zero groups, the limits of the types, what lies past the end (A1, A3,
// A4, A6, A7).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "support.hpp"

namespace echo_comm::core {
namespace {

class SpecialValues : public PerCodec {
 protected:
  // Encode with feedback: payload, what is then owed, number of poisoned groups.
  struct Coded {
    Bytes payload;
    Bytes residual;
    int64_t poisoned = 0;
  };
  static Coded coded(const Cell& cell, const std::vector<float>& values) {
    const Block block = cell.block();
    const int64_t groups = block.range.size();
    Coded result{Bytes(to_size(block.encoded_bytes())), normal_residual(groups, *cell.feedback, 9)};
    const Residuals residuals{*cell.feedback, {result.residual.data(), groups}, {}, {}};
    result.poisoned = codec().encode(block, to_elements(values, cell.dtype).data(), residuals, result.payload.data());
    return result;
  }
  static uint16_t scale(const Cell& cell, const Bytes& payload, int64_t group) {
    uint16_t bits = 0;
    const int64_t codes = cell.block().range.size() * code_bytes(cell.format.bits);
    std::memcpy(&bits, &payload[to_size(codes + group * kScaleBytes)], sizeof bits);
    return bits;
  }
};

INSTANTIATE_TEST_SUITE_P(Codecs, SpecialValues, ::testing::ValuesIn(available_codecs()), codec_of);

uint32_t canonical_nan(Dtype dtype) {
  return dtype == Dtype::kFloat32   ? kCanonicalFp32Nan
         : dtype == Dtype::kFloat16 ? kCanonicalFp16Nan
                                    : kCanonicalBf16Nan;
}

std::vector<Cell> coded_cells(int64_t count) {
  std::vector<Cell> all = cells(count, 0);
  std::erase_if(all, [](const Cell& cell) { return cell.format.exact() || !cell.feedback; });
  return all;
}

// A6: one bad value makes 64 NaN, counted once, with nothing owed; the neighbours' bytes are what they were.
TEST_P(SpecialValues, PoisonOneGroupAndNoOther) {
  constexpr int64_t kCount = 5 * kGroup;
  const std::vector<float> clean = normal_values(kCount, 1, -2, 2);
  for (const Cell& cell : coded_cells(kCount)) {
    const Coded expected = coded(cell, clean);
    const std::vector<float> clean_out = from_elements(decoded(cell.block(), expected.payload), cell.dtype);
    for (const float bad : {NAN, -NAN, INFINITY, -INFINITY}) {
      for (const int position : {0, 31, 63}) {
        std::vector<float> values = clean;
        values[to_size(2 * kGroup + position)] = bad;
        Coded got = coded(cell, values);
        ASSERT_EQ(got.poisoned, 1) << describe(cell);
        for (int64_t group = 0; group < 5; ++group) {
          const uint16_t expected_scale = group == 2 ? kPoisonedScale : scale(cell, expected.payload, group);
          ASSERT_EQ(scale(cell, got.payload, group), expected_scale) << describe(cell);
        }
        for (const float e : owed(got.residual, 5, 2, *cell.feedback)) ASSERT_EQ(e, 0.0F) << describe(cell);
        const Bytes out = decoded(cell.block(), got.payload);
        const std::vector<float> out_values = from_elements(out, cell.dtype);
        const std::size_t size = to_size(element_size(cell.dtype));
        for (std::size_t i = 0; i < kCount; ++i) {
          uint32_t bits = 0;
          std::memcpy(&bits, &out[i * size], size);
          if (i / kGroup == 2) {
            ASSERT_EQ(bits, canonical_nan(cell.dtype)) << describe(cell) << ", element " << i;
          } else {
            ASSERT_EQ(out_values[i], clean_out[i]) << describe(cell) << ", element " << i;
          }
        }
      }
    }
  }
}

// A poisoned decode clears what is owed for its group alone, in sender and owner residuals of every store.
TEST_P(SpecialValues, APoisonedDecodeClearsWhatIsOwed) {
  std::vector<float> values = normal_values(5 * kGroup, 2);
  values[3 * kGroup + 31] = NAN;
  for (const Cell& cell : coded_cells(5 * kGroup)) {
    const Bytes payload = encoded(cell.block(), to_elements(values, cell.dtype));
    Bytes sender = normal_residual(5, *cell.feedback, 3);
    Bytes owner = normal_residual(2, *cell.feedback, 4);
    Bytes expected_sender = sender;
    Bytes expected_owner = owner;
    clear_residual(Residual{expected_sender.data(), 5}.of(3, *cell.feedback));
    clear_residual(Residual{expected_owner.data(), 2}.of(0, *cell.feedback));
    Bytes out(to_size(cell.count * element_size(cell.dtype)));
    const std::byte* payloads[] = {payload.data()};
    const Residuals residuals{*cell.feedback, {sender.data(), 5}, {owner.data(), 2}, {3, 5}};
    ASSERT_EQ(codec().decode(cell.block(), payloads, residuals, {}, out.data()), 1) << describe(cell);
    ASSERT_EQ(sender, expected_sender) << describe(cell);
    ASSERT_EQ(owner, expected_owner) << describe(cell);
  }
}

// A3, A4: a zero group has scale bits 0 and decodes to +0, next to groups that are tiny but not zero.
TEST_P(SpecialValues, ZeroGroupsAreExactZeros) {
  std::vector<float> values(4 * kGroup, 0.0F);
  for (std::size_t i = 0; i < kGroup; ++i) {
    values[kGroup + i] = i % 2 == 0 ? 1e-6F : -1e-6F;
    values[2 * kGroup + i] = i % 2 == 0 ? -0.0F : 0x1p-140F;  // below 2^-100
    values[3 * kGroup + i] = i == 5 ? 0x1p-93F : 0.0F;        // 2^-96 in each element once rotated
  }
  for (const int bits : kCodedBits) {
    for (const bool rotation : {true, false}) {
      const Cell cell{4 * kGroup, 0, {bits, rotation}, Dtype::kFloat32, std::nullopt};
      const Bytes payload = encoded(cell.block(), to_elements(values, cell.dtype));
      const std::vector<float> out = from_elements(decoded(cell.block(), payload), cell.dtype);
      for (const int64_t group : {0, 2}) {
        EXPECT_EQ(scale(cell, payload, group), 0) << describe(cell);
        for (std::size_t i = 0; i < kGroup; ++i) {
          ASSERT_EQ(std::bit_cast<uint32_t>(out[to_size(group * kGroup) + i]), 0U) << describe(cell);
        }
      }
      for (const int64_t group : {1, 3}) EXPECT_NE(scale(cell, payload, group), 0) << describe(cell);
      EXPECT_NEAR(out[kGroup], 1e-6F, 1e-6F) << describe(cell);
      EXPECT_NE(out[3 * kGroup + 5], 0.0F) << describe(cell);
    }
  }
}

// A4: zero on one rank, on all but one, on all: sums of three.
TEST_P(SpecialValues, ZeroRanksAddNothing) {
  const Cell cell{2 * kGroup, 0, {4, false}, Dtype::kFloat32, std::nullopt};
  const Bytes zero = encoded(cell.block(), Bytes(cell.count * sizeof(float)));
  const Bytes some = encoded(cell.block(), normal_elements(cell, 3));
  const std::vector<float> one = from_elements(decoded(cell.block(), some), cell.dtype);
  for (int live = 0; live <= 3; ++live) {
    const std::byte* payloads[3];
    for (int rank = 0; rank < 3; ++rank) payloads[rank] = rank < live ? some.data() : zero.data();
    std::vector<float> out(to_size(cell.count), NAN);
    EXPECT_EQ(codec().decode(cell.block(), payloads, {}, {}, out.data()), 0);
    for (std::size_t i = 0; i < out.size(); ++i) {
      float sum = 0;
      for (int rank = 0; rank < live; ++rank) sum += one[i];
      ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), std::bit_cast<uint32_t>(sum)) << live << " live ranks, element " << i;
    }
  }
}

// The sum of two ranks as the owner, rank 0, makes it: encode, reduce, decode.
Bytes sum_of_two(const Codec& codec, const Block& block, const Bytes& in, int64_t* poisoned) {
  Bytes sent(to_size(block.encoded_bytes()));
  Bytes sum(sent.size());
  Bytes out(in.size());
  *poisoned = codec.encode(block, in.data(), {}, sent.data());
  const std::byte* received[] = {nullptr, sent.data()};
  *poisoned += codec.reduce(block, received, in.data(), {}, {}, sum.data());
  const std::byte* payloads[] = {sum.data()};
  *poisoned += codec.decode(block, payloads, {}, {}, out.data());
  return out;
}

// Sums 1.0 everywhere but for a group of `large` and one of -large over two ranks, in every format; calls
// body(cell, value, sum, element).
template <typename Body>
void sum_with_large_groups(const Codec& codec, Dtype dtype, float large, const Body& body) {
  std::vector<float> values(1024, 1.0F);
  std::fill_n(values.begin() + 2 * kGroup, kGroup, large);
  std::fill_n(values.begin() + 5 * kGroup, kGroup, -large);
  for (const int bits : kEveryBits) {
    for (const bool rotation : {true, false}) {
      const Cell cell{1024, 0, {bits, rotation}, dtype, std::nullopt};
      int64_t poisoned = 0;
      const Bytes bytes = sum_of_two(codec, cell.block(), to_elements(values, dtype), &poisoned);
      const std::vector<float> out = from_elements(bytes, dtype);
      EXPECT_EQ(poisoned, 0) << describe(cell);
      for (std::size_t i = 0; i < out.size(); ++i) body(cell, values[i], out[i], i);
    }
  }
}

// A1: bf16 values beyond fp16's range go through unharmed, the other groups are exact.
TEST_P(SpecialValues, LargeBf16ValuesMeetNoFp16) {
  sum_with_large_groups(codec(), Dtype::kBfloat16, 1e30F,
                        [](const Cell& cell, float value, float sum, std::size_t element) {
                          ASSERT_NEAR(sum, 2 * value, std::abs(value) == 1.0F ? 0.0F : 1e-2F * 2e30F)
                              << describe(cell) << ", element " << element;
                        });
}

// A1: in fp16 only the elements past its range become infinite.
TEST_P(SpecialValues, OnlyElementsPastTheRangeOfFp16BecomeInfinite) {
  sum_with_large_groups(codec(), Dtype::kFloat16, 40000.0F,
                        [](const Cell& cell, float value, float sum, std::size_t element) {
                          const float expected = value == 1.0F ? 2.0F : std::copysign(INFINITY, value);
                          ASSERT_EQ(sum, expected) << describe(cell) << ", element " << element;
                        });
}

// A7: what lies past the end of a tensor or a row is taken as zeros, not read.
TEST_P(SpecialValues, TailsArePaddedWithZeros) {
  std::set<int64_t> counts{1, 63, 65};
  for (const int64_t groups : {2, 3, 9}) counts.insert({kGroup * groups - 1, kGroup * groups + 1});
  for (const int64_t count : counts) {
    for (Cell cell : cells(count, 0)) {
      if (cell.format.exact() || !cell.feedback) continue;
      std::vector<float> values = normal_values(count, 7, -2, 2);
      const Coded tail = coded(cell, values);
      values.resize(to_size((count + kGroup - 1) / kGroup * kGroup), 0.0F);
      cell.count = static_cast<int64_t>(values.size());
      const Coded padded = coded(cell, values);
      ASSERT_EQ(tail.payload, padded.payload) << describe(cell);
      ASSERT_EQ(tail.residual, padded.residual) << describe(cell);

      std::vector<float> longer = values;
      longer.resize(to_size(count));
      longer.resize(values.size(), 1e30F);  // fp16: infinity
      cell.count = count;
      ASSERT_EQ(coded(cell, longer).payload, padded.payload) << describe(cell) << ", 1e30 past the end";
    }
  }
}

}  // namespace
}  // namespace echo_comm::core
