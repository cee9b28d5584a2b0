// The sweep of reduce-scatter, and the exact path in one shot, by what they must equal: sums that the other sweeps make.
#include "tests/codec/support.hpp"

namespace echo_comm::core {
namespace {

class CodecSum : public PerCodec {};

INSTANTIATE_TEST_SUITE_P(Each, CodecSum, ::testing::ValuesIn(available_codecs()),
                         [](const auto& info) { return std::string(info.param->name()); });

constexpr int kSize = 3;
constexpr int kOwner = 1;
constexpr std::pair<int64_t, int64_t> kShapes[] = {{0, 0}, {1, 0}, {63, 0}, {64, 0}, {65, 0}, {1000, 0}, {1000, 100}};

// Sums of the block with the owner's addend in its place, and what the ranks sent.
struct Shot {
  std::vector<Bytes> inputs;
  std::vector<Bytes> encoded;
  std::vector<const std::byte*> payloads;  // that of the owner is null
  std::vector<const std::byte*> everyone;
};

Shot shoot(const Codec& codec, const Cell& cell, bool special) {
  Shot shot;
  for (uint32_t rank = 0; rank < kSize; ++rank) {
    std::vector<float> values = normal_values(cell.count, 7 + rank);
    if (special && cell.count > 70) {
      values[3] = rank == 0 ? NAN : 1.0F;
      values[67] = rank == kOwner ? -INFINITY : values[67];
    }
    shot.inputs.push_back(to_elements(values, cell.dtype));
    shot.encoded.emplace_back(to_size(cell.block().encoded_bytes()));
    codec.encode(cell.block(), shot.inputs[rank].data(), {}, shot.encoded[rank].data());
  }
  for (int rank = 0; rank < kSize; ++rank) {
    shot.everyone.push_back(shot.encoded[to_size(rank)].data());
    shot.payloads.push_back(rank == kOwner ? nullptr : shot.everyone.back());
  }
  return shot;
}

// Coded, own addend coded too: what one-shot delivers, bit for bit.
TEST_P(CodecSum, WithTheOwnAddendCodedIsTheSumOfOneShot) {
  for (const auto& [count, row] : kShapes) {
    for (const Cell& cell : cells(count, row)) {
      if (cell.feedback || cell.format.exact()) continue;
      for (const int divisor : {1, kSize}) {
        const Shot shot = shoot(codec(), cell, true);
        Bytes expected(shot.inputs[0].size());
        const int64_t bad = codec().decode(cell.block(), shot.everyone, {}, {.divisor = divisor}, expected.data());
        Bytes out(expected.size());
        const ReduceOptions options{kOwner, true, divisor};
        EXPECT_EQ(codec().sum(cell.block(), shot.payloads, shot.inputs[kOwner].data(), {}, options, out.data()), bad);
        ASSERT_EQ(out, expected) << describe(cell);
        EXPECT_EQ(bad > 0, count > 70) << "both poisoned groups are counted";
      }
    }
  }
}

// The owner's sender residual enters its addend and is paid; the owner residual is neither read nor written.
TEST_P(CodecSum, EqualsTheReferenceAndPaysTheOwnSenderResidual) {
  for (const auto& [count, row] : kShapes) {
    for (const Cell& cell : cells(count, row)) {
      if (!cell.feedback) continue;
      const Shot shot = shoot(codec(), cell, false);
      const int64_t groups = cell.layout().groups();
      Bytes outs[2];
      for (const bool in_place : {false, true}) {
        const Codec& one = in_place ? codec() : reference_codec();
        Bytes sender = normal_residual(groups, *cell.feedback, 3);
        Bytes owner = normal_residual(groups, *cell.feedback, 4);
        const Bytes owner_before = owner;
        const Residuals residuals{*cell.feedback, {sender.data(), groups}, {owner.data(), groups}, {0, groups}};
        outs[in_place ? 1 : 0] = shot.inputs[kOwner];
        std::byte* out = outs[in_place ? 1 : 0].data();
        EXPECT_EQ(one.sum(cell.block(), shot.payloads, in_place ? out : shot.inputs[kOwner].data(), residuals,
                          {kOwner, false, 1}, out),
                  0);
        for (int64_t group = 0; group < groups; ++group) {
          EXPECT_EQ(largest_magnitude(owed(sender, groups, group, *cell.feedback)), 0.0F) << describe(cell);
        }
        EXPECT_EQ(owner, owner_before) << "stays owed";
      }
      ASSERT_EQ(outs[0], outs[1]) << describe(cell);
    }
  }
}

// Exact path without residuals: the sum in one shot, that of reduce-scatter and that of two-shot have the same bits.
TEST_P(CodecSum, ExactSumsAreTheSameOnEveryWay) {
  for (const auto& [count, row] : kShapes) {
    for (const Dtype dtype : kDtypes) {
      for (const int divisor : {1, kSize}) {
        const Cell cell{count, row, {kExactBits, true}, dtype, std::nullopt};
        const Shot shot = shoot(codec(), cell, true);
        const ReduceOptions options{kOwner, false, divisor};
        Bytes sum(shot.inputs[0].size());
        codec().sum(cell.block(), shot.payloads, shot.inputs[kOwner].data(), {}, options, sum.data());
        Bytes one_shot(sum.size());
        codec().decode(cell.block(), shot.everyone, {}, {.divisor = divisor}, one_shot.data());
        Bytes reduced(to_size(cell.block().encoded_bytes()));
        codec().reduce(cell.block(), shot.payloads, shot.inputs[kOwner].data(), {}, options, reduced.data());
        const std::byte* payload = reduced.data();
        Bytes two_shot(sum.size());
        codec().decode(cell.block(), Payloads(&payload, 1), {}, {.divisor = divisor}, two_shot.data());
        ASSERT_EQ(one_shot, two_shot) << describe(cell);
        ASSERT_EQ(sum, two_shot) << describe(cell);
      }
    }
  }
}

// One-shot on the exact path pays both residuals: what is sent is x + H(e + o), what is left is e.
TEST_P(CodecSum, ExactOneShotPaysTheOwnerResidual) {
  for (const Dtype dtype : kDtypes) {
    const Cell cell{128, 0, {kExactBits, false}, dtype, Store::kFp32};
    Bytes sender(to_size(residual_bytes(2, Store::kFp32)));
    Bytes owner(sender.size());
    const float owed_value = 0.25F;
    for (std::size_t i = 0; i < 128; ++i) std::memcpy(&owner[4 * i], &owed_value, 4);
    const Residuals residuals{Store::kFp32, {sender.data(), 2}, {owner.data(), 2}, {0, 2}};
    const Bytes in = to_elements(std::vector<float>(128, 1.0F), dtype);
    Bytes payload(to_size(cell.block().encoded_bytes()));
    codec().encode(cell.block(), in.data(), residuals, payload.data());
    EXPECT_EQ(from_elements(payload, dtype), std::vector<float>(128, 1.25F));
    EXPECT_EQ(largest_magnitude(owed(owner, 2, 1, Store::kFp32)), 0.0F);
    EXPECT_EQ(largest_magnitude(owed(sender, 2, 1, Store::kFp32)), 0.0F);
  }
}

}  // namespace
}  // namespace echo_comm::core
