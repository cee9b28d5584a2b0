// Every codec that this processor can run equals the reference bit for bit: payloads, residuals, outputs, counts, over
// the product of types, widths, rotation, residuals, sizes, rows and special values (A8, A9, C5).
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "codec/codec.hpp"
#include "codec/dispatch.hpp"
#include "codec/element.hpp"

namespace echo_comm::core {
namespace {

// Bits of a stored element: normal numbers of many sizes, now and then something special.
class Inputs {
 public:
  explicit Inputs(uint32_t seed) : random_(seed) {}

  std::vector<std::byte> elements(int64_t count, Dtype dtype, bool special) {
    const auto size = static_cast<std::size_t>(element_size(dtype));
    std::vector<std::byte> bytes(static_cast<std::size_t>(count) * size);
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      if (i % 64 == 0) factor_ = std::exp2(static_cast<float>(exponent_(random_)));
      const float value = special && random_() % 97 == 0 ? special_value() : normal_(random_) * factor_;
      const uint32_t bits = dtype == Dtype::kFloat32   ? std::bit_cast<uint32_t>(value)
                            : dtype == Dtype::kFloat16 ? float_to_fp16(value)
                                                       : float_to_bf16(value);
      std::memcpy(&bytes[i * size], &bits, size);
    }
    return bytes;
  }
  std::vector<std::byte> residual(int64_t groups, Store store) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(residual_bytes(groups, store)));
    const Residual residual{bytes.data(), groups};
    std::array<float, kGroup> e;
    for (int64_t group = 0; group < groups; ++group) {
      for (float& x : e) x = normal_(random_) * 0.1F;
      store_residual(e, residual.of(group, store));
    }
    return bytes;
  }
  std::vector<std::byte> any_bytes(int64_t count) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(count));
    for (std::byte& b : bytes) b = static_cast<std::byte>(random_());
    return bytes;
  }

 private:
  float special_value() {
    static constexpr float kValues[] = {NAN,   -NAN,   INFINITY, -INFINITY, 0.0F,     -0.0F,    1e-42F, -1e-45F,
                                        3e38F, -3e38F, 65504.0F, 65519.0F,  65520.0F, 0x1p-25F, 6e-8F,  0x1p124F};
    return kValues[random_() % std::size(kValues)];
  }

  std::mt19937 random_;
  std::normal_distribution<float> normal_;
  std::uniform_int_distribution<int> exponent_{-30, 14};
  float factor_ = 1;
};

struct Case {
  int64_t count;
  int64_t row_length;
  Format format;
  Dtype dtype;
  std::optional<Store> feedback;
  bool special;
};

constexpr std::pair<int64_t, int64_t> kSizes[] = {{0, 0},  {1, 0},    {63, 0},     {64, 0},
                                                  {65, 0}, {1000, 0}, {1000, 100}, {2304, 576}};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const auto& [count, row] : kSizes) {
    for (const int bits : {3, 4, 5, 6, 8, kExactBits}) {
      for (const bool rotation : {true, false}) {
        for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBfloat16, Dtype::kFloat16}) {
          for (const std::optional<Store> feedback : {std::optional<Store>(), std::optional(Store::kFp32),
                                                      std::optional(Store::kInt8), std::optional(Store::kInt16)}) {
            for (const bool special : {true, false}) {
              all.push_back({count, row, {bits, rotation}, dtype, feedback, special});
            }
          }
        }
      }
    }
  }
  return all;
}

// Everything that a codec wrote in one sequence of calls.
struct Trace {
  std::vector<std::vector<std::byte>> bytes;
  std::vector<std::vector<std::byte>> residuals;
  std::vector<int64_t> poisoned;
};

// Equal bytes; of fp32 residuals also a NaN of any sign, which an exact call leaves until its decode.
bool same(const std::vector<std::byte>& a, const std::vector<std::byte>& b, bool floats) {
  if (a == b || !floats) return a == b;
  for (std::size_t i = 0; i < a.size(); i += sizeof(float)) {
    float x = 0;
    float y = 0;
    std::memcpy(&x, &a[i], sizeof x);
    std::memcpy(&y, &b[i], sizeof y);
    if (std::bit_cast<uint32_t>(x) != std::bit_cast<uint32_t>(y) && !(std::isnan(x) && std::isnan(y))) return false;
  }
  return true;
}

// Three ranks' payloads, a reduction of the second chunk with and without batch invariance, decodes of one and several.
Trace run(const Codec& codec, const Case& c) {
  Trace trace;
  Inputs inputs(static_cast<uint32_t>(c.count * 31 + c.format.bits));
  const GroupLayout layout(c.count, c.row_length);
  const GroupRange whole{0, layout.groups()};
  const GroupRange own = chunk_of(layout.groups(), 3, 1);
  std::vector<std::vector<std::byte>> parts;
  std::vector<std::byte> in;
  std::vector<std::byte> sender;
  std::vector<std::byte> owner;
  const auto residuals = [&] {
    if (!c.feedback) return Residuals{};
    return Residuals{*c.feedback, {sender.data(), layout.groups()}, {owner.data(), own.size()}, own};
  };
  const Store store = c.feedback.value_or(Store::kFp32);
  for (int rank = 0; rank < 3; ++rank) {
    in = inputs.elements(c.count, c.dtype, c.special);
    sender = inputs.residual(layout.groups(), store);
    owner = inputs.residual(own.size(), store);
    const Block block{layout, whole, c.format, c.dtype};
    parts.emplace_back(static_cast<std::size_t>(block.encoded_bytes()));
    trace.poisoned.push_back(codec.encode(block, in.data(), residuals(), parts.back().data()));
    trace.bytes.push_back(parts.back());
    trace.residuals.push_back(sender);
    trace.residuals.push_back(owner);
  }
  const Block chunk{layout, own, c.format, c.dtype};
  for (const bool invariant : {false, true}) {
    std::vector<std::vector<std::byte>> received;
    for (int rank = 0; rank < 3; ++rank) received.push_back(inputs.any_bytes(chunk.encoded_bytes()));
    const std::byte* pointers[] = {received[0].data(), nullptr, received[2].data()};
    std::vector<std::byte> sum(static_cast<std::size_t>(chunk.encoded_bytes()));
    trace.poisoned.push_back(codec.reduce(chunk, pointers, in.data(), residuals(), {1, invariant, 3}, sum.data()));
    trace.bytes.push_back(sum);
    trace.residuals.push_back(sender);
    trace.residuals.push_back(owner);
  }
  const Block block{layout, whole, c.format, c.dtype};
  const std::byte* pointers[] = {parts[0].data(), parts[1].data(), parts[2].data()};
  for (const std::size_t count : {std::size_t{1}, std::size_t{3}}) {
    if (c.format.exact() && count > 1) continue;
    std::vector<std::byte> out = inputs.elements(c.count, c.dtype, c.special);
    for (const DecodeOptions options : {DecodeOptions{3, false}, DecodeOptions{1, true}, DecodeOptions{3, true}}) {
      trace.poisoned.push_back(codec.decode(block, Payloads(pointers, count), residuals(), options, out.data()));
      trace.bytes.push_back(out);
      trace.residuals.push_back(sender);
      trace.residuals.push_back(owner);
    }
  }
  return trace;
}

class Equality : public ::testing::TestWithParam<const Codec*> {};

INSTANTIATE_TEST_SUITE_P(Codecs, Equality, ::testing::ValuesIn(available_codecs()),
                         [](const auto& info) { return std::string(info.param->name()); });

TEST_P(Equality, EqualsTheReferenceBitForBit) {
  for (const Case& c : cases()) {
    const Trace expected = run(reference_codec(), c);
    const Trace got = run(*GetParam(), c);
    const std::string where = "count " + std::to_string(c.count) + " row " + std::to_string(c.row_length) + " " +
                              format_name(c.format) + " " + dtype_name(c.dtype) + (c.feedback ? " feedback" : "") +
                              (c.special ? " special" : "");
    ASSERT_EQ(got.poisoned, expected.poisoned) << where;
    for (std::size_t i = 0; i < expected.bytes.size(); ++i) {
      ASSERT_EQ(got.bytes[i], expected.bytes[i]) << where << ", output " << i;
    }
    for (std::size_t i = 0; i < expected.residuals.size(); ++i) {
      ASSERT_TRUE(same(got.residuals[i], expected.residuals[i], c.feedback == Store::kFp32))
          << where << ", residual " << i;
    }
  }
}

TEST(Codecs, TheListStartsWithTheFastestAndHasEmulatedVectorsBehindTheReference) {
  const std::vector<const Codec*>& codecs = available_codecs();
  const auto reference = std::ranges::find(codecs, &reference_codec());
  ASSERT_NE(reference, codecs.end());
  for (auto codec = codecs.begin(); codec != codecs.end(); ++codec) {
    if (std::string_view((*codec)->name()) == "EMU128") {
      EXPECT_GT(codec, reference);
    }
  }
  EXPECT_EQ(codec_named(""), codecs.front());
  for (const Codec* codec : codecs) EXPECT_EQ(codec_named(codec->name()), codec);
  EXPECT_EQ(codec_named("abacus"), nullptr);
}

}  // namespace
}  // namespace echo_comm::core
