// Several threads give the bytes of one: payloads, residuals, outputs, counts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <random>
#include <utility>
#include <vector>

#include "codec/dispatch.hpp"
#include "codec/element.hpp"
#include "codec/threaded.hpp"

namespace echo_comm::core {
namespace {

struct Result {
  std::vector<std::vector<std::byte>> bytes;
  std::vector<int64_t> poisoned;
  bool operator==(const Result&) const = default;
};

std::vector<float> values(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(count));
  for (float& value : x) value = normal(random);
  for (std::size_t i = 77; i < x.size(); i += 9973) x[i] = NAN;
  return x;
}

Result run(const Codec& codec, int64_t count, int64_t row, Format format, Store store) {
  const GroupLayout layout(count, row);
  const GroupRange own = chunk_of(layout.groups(), 2, 1);
  const std::vector<float> in = values(count, 1);
  std::vector<std::byte> sender(static_cast<std::size_t>(residual_bytes(layout.groups(), store)));
  std::vector<std::byte> owner(static_cast<std::size_t>(residual_bytes(own.size(), store)));
  const Residuals residuals{store, {sender.data(), layout.groups()}, {owner.data(), own.size()}, own};
  const Block block{layout, {1, layout.groups()}, format, Dtype::kFloat32};
  const Block chunk{layout, own, format, Dtype::kFloat32};
  Result result;
  const auto keep = [&](const std::vector<std::byte>& bytes, int64_t poisoned) {
    result.bytes.insert(result.bytes.end(), {bytes, sender, owner});
    result.poisoned.push_back(poisoned);
  };
  std::vector<std::byte> payload(static_cast<std::size_t>(block.encoded_bytes()));
  for (int call = 0; call < 2; ++call) keep(payload, codec.encode(block, in.data(), residuals, payload.data()));
  std::vector<std::byte> part(static_cast<std::size_t>(chunk.encoded_bytes()));
  codec.encode(chunk, in.data(), {}, part.data());
  const std::byte* parts[] = {part.data(), nullptr};
  std::vector<std::byte> sum(part.size());
  keep(sum, codec.reduce(chunk, parts, in.data(), residuals, {1, false, 1}, sum.data()));
  std::vector<std::byte> out(static_cast<std::size_t>(count) * 4);
  const std::byte* sums[] = {payload.data()};
  keep(out, codec.decode(block, sums, residuals, {}, out.data()));
  return result;
}

// Remembers the parts that it is asked for.
class RecordingCodec final : public Codec {
 public:
  [[nodiscard]] const char* name() const noexcept override { return "recording"; }
  int64_t encode(const Block& block, const void*, const Residuals&, std::byte*) const override { return add(block); }
  int64_t reduce(const Block& block, Payloads, const void*, const Residuals&, const ReduceOptions&,
                 std::byte*) const override {
    return add(block);
  }
  int64_t sum(const Block& block, Payloads, const void*, const Residuals&, const ReduceOptions&, void*) const override {
    return add(block);
  }
  int64_t decode(const Block& block, Payloads, const Residuals&, const DecodeOptions&, void*) const override {
    return add(block);
  }
  [[nodiscard]] std::vector<GroupRange> take() const {
    std::vector<GroupRange> parts = std::exchange(parts_, {});
    std::ranges::sort(parts, {}, &GroupRange::begin);
    return parts;
  }

 private:
  int64_t add(const Block& block) const {
    const std::lock_guard lock(mutex_);
    parts_.push_back(block.work());
    return 1;
  }
  mutable std::mutex mutex_;
  mutable std::vector<GroupRange> parts_;
};

TEST(ThreadedCodec, DividesLargeBlocksAmongItsThreads) {
  const RecordingCodec recording;
  constexpr int64_t kLeast = ThreadedCodec::kLeastGroups;
  struct Division {
    int64_t groups;
    int threads;
    std::size_t parts;
  };
  for (const Division& wanted : {Division{0, 4, 1}, Division{2 * kLeast - 1, 4, 1}, Division{2 * kLeast, 4, 2},
                                 Division{9 * kLeast, 4, 4}, Division{9 * kLeast, 1, 1}}) {
    Workers workers(wanted.threads);
    const ThreadedCodec codec(recording, workers);
    const GroupRange range{5, 5 + wanted.groups};
    const Block block{GroupLayout((wanted.groups + 9) * kGroup, 0), range, {}, Dtype::kFloat32};
    const auto check = [&](int64_t poisoned) {
      EXPECT_EQ(poisoned, static_cast<int64_t>(wanted.parts)) << "each part counts its own";
      const std::vector<GroupRange> parts = recording.take();
      ASSERT_EQ(parts.size(), wanted.parts) << wanted.groups << " groups, " << wanted.threads << " threads";
      EXPECT_EQ(parts.front().begin, range.begin);
      EXPECT_EQ(parts.back().end, range.end);
      for (std::size_t i = 1; i < parts.size(); ++i) EXPECT_EQ(parts[i].begin, parts[i - 1].end);
    };
    check(codec.encode(block, nullptr, {}, nullptr));
    check(codec.reduce(block, {}, nullptr, {}, {}, nullptr));
    check(codec.decode(block, {}, {}, {}, nullptr));
  }
}

TEST(ThreadedCodec, GivesTheSameBytesForAnyNumberOfThreads) {
  for (const auto& [count, row] : {std::pair<int64_t, int64_t>{64, 0},
                                   {ThreadedCodec::kLeastGroups * 64 * 2 + 64, 0},
                                   {ThreadedCodec::kLeastGroups * 64 * 5 + 17, 0},
                                   {3000 * 100, 100}}) {
    for (const Format format : {Format{4, true}, Format{5, false}, Format{kExactBits, true}}) {
      for (const Store store : {Store::kFp32, Store::kInt8, Store::kInt16}) {
        const Result expected = run(active_codec(), count, row, format, store);
        for (const int threads : {1, 2, 3, 8}) {
          Workers workers(threads);
          const ThreadedCodec codec(active_codec(), workers);
          EXPECT_STREQ(codec.name(), active_codec().name());
          ASSERT_TRUE(run(codec, count, row, format, store) == expected)
              << threads << " threads, count " << count << ", " << format_name(format);
        }
      }
    }
  }
}

}  // namespace
}  // namespace echo_comm::core
