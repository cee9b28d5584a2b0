// What each store of the residuals loses over a pass (numerics.md section 8): the running sum of what was sent, plus what
// is still owed, against the running sum of what should have been sent.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <optional>
#include <random>
#include <vector>

#include "codec/dispatch.hpp"
#include "codec/element.hpp"
#include "feedback/feedback.hpp"

namespace echo_comm::core {
namespace {

constexpr int64_t kCount = 16 * kGroup;
constexpr std::array<int, 3> kDepths = {60, 256, 10'000};

using Source = std::function<std::vector<float>(int call)>;

// Lost for good, as a multiple of the largest input, after each of kDepths calls.
std::array<double, 3> drift(std::optional<Store> store, const Source& source) {
  const GroupLayout layout(kCount, 0);
  const Block block{layout, {0, layout.groups()}, {4, false}, Dtype::kFloat32};
  const Partition partition = Partition::chunks(layout, 1);
  Feedback feedback(kCount, 0, 1, store);
  std::vector<std::byte> payload(static_cast<std::size_t>(block.encoded_bytes()));
  const std::byte* parts[] = {payload.data()};
  std::vector<float> sent(kCount);
  std::vector<double> missing(kCount);
  std::array<double, 3> result{};
  double largest = 0;
  std::size_t next = 0;
  for (int call = 1; call <= kDepths.back(); ++call) {
    const std::vector<float> x = source(call);
    for (const float value : x) largest = std::max(largest, std::abs(static_cast<double>(value)));
    feedback.join_pass(partition, false);
    Residuals residuals = feedback.residuals();
    residuals.owner = {};
    active_codec().encode(block, x.data(), residuals, payload.data());
    active_codec().decode(block, parts, {}, {}, sent.data());
    for (std::size_t i = 0; i < sent.size(); ++i) missing[i] += static_cast<double>(x[i]) - sent[i];
    if (call != kDepths.at(next)) continue;
    std::array<float, kGroup> owed;
    for (std::size_t i = 0; i < missing.size(); ++i) {
      if (i % kGroup == 0) load_residual(residuals.sender_of(static_cast<int64_t>(i) / kGroup), owed);
      result.at(next) = std::max(result.at(next), std::abs(missing[i] - owed[i % kGroup]) / largest);
    }
    ++next;
  }
  return result;
}

std::vector<float> gaussian(uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(kCount);
  for (float& value : x) value = normal(random);
  return x;
}

std::vector<float> constant_input(int /*call*/) {
  static const std::vector<float> x = gaussian(1);
  return x;
}
std::vector<float> gaussian_input(int call) { return gaussian(static_cast<uint32_t>(call)); }

// The first values that rank 0 of four sends in the 60 all-reduces of a real model, again and again; bf16 bits.
std::vector<float> recorded(std::string& where) {
  const char* data = std::getenv("ECHO_DATA");
  const std::filesystem::path root = data != nullptr ? data : ECHO_TEST_SOURCE_DIR "/../shared/data";
  where = (root / "traces" / "smollm2_135m_tp4_t32.npy").string();
  std::ifstream in(where, std::ios::binary);
  constexpr int64_t kTensor = int64_t{32} * 576;
  std::array<char, 10> prefix{};
  in.read(prefix.data(), prefix.size());
  const int64_t start = 10 + static_cast<unsigned char>(prefix[8]) + 256 * static_cast<unsigned char>(prefix[9]);
  std::vector<float> values;
  std::vector<uint16_t> bits(kCount);
  for (int64_t call = 0; in && call < 60; ++call) {
    in.seekg(start + call * 4 * kTensor * 2);
    in.read(reinterpret_cast<char*>(bits.data()), kCount * 2);
    for (const uint16_t value : bits) values.push_back(bf16_to_float(value));
  }
  if (!in) values.clear();
  return values;
}

void print(const char* input, const char* store, const std::array<double, 3>& lost) {
  std::cout << input << " input, " << store << ": lost after 60 / 256 / 10,000 calls " << lost[0] << " / " << lost[1]
            << " / " << lost[2] << "\n";
}

void check(const char* input, const Source& source) {
  const auto fp32 = drift(Store::kFp32, source);
  const auto int8 = drift(Store::kInt8, source);
  const auto int16 = drift(Store::kInt16, source);
  const auto automatic = drift(std::nullopt, source);
  print(input, "fp32", fp32);
  print(input, "int8", int8);
  print(input, "int16", int16);
  print(input, "auto", automatic);
  EXPECT_LT(fp32[2], 10'000 * 0x1p-22);
  EXPECT_LT(int8[0], 0.02);
  EXPECT_LT(int8[1], 0.06);
  EXPECT_LT(int16[2], 0.01);
  EXPECT_EQ(automatic[0], int8[0]);
  EXPECT_LT(automatic[2], int8[1] + 0.01) << "int16 from call 257 on";
}

TEST(Drift, OfConstantInput) {
  check("constant", constant_input);
  EXPECT_GT(drift(Store::kInt8, constant_input)[2], 0.1) << "the reason why long passes use int16";
}

TEST(Drift, OfGaussianInput) { check("gaussian", gaussian_input); }

TEST(Drift, OfRecordedInput) {
  std::string where;
  const std::vector<float> values = recorded(where);
  if (values.empty()) GTEST_SKIP() << "no recorded partial sums at " << where << "; set ECHO_DATA";
  check("recorded", [&](int call) {
    const auto first = values.begin() + static_cast<int64_t>((call - 1) % 60) * kCount;
    return std::vector<float>(first, first + kCount);
  });
}

}  // namespace
}  // namespace echo_comm::core
