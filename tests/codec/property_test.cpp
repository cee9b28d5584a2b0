// What the sweeps promise of every codec: bounds of what is lost, in every store; the same bytes for any division into
// parts, any floating-point mode of the caller, in place or not (numerics.md sections 2, 4, 8).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support.hpp"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace echo_comm::core {
namespace {

class Properties : public PerCodec {
 protected:
  struct Coded {
    Bytes payload;
    Bytes residual;
  };
  // With nothing owed before.
  static Coded encoded_with(const Cell& cell, const Bytes& in) {
    const Block block = cell.block();
    Coded coded{Bytes(to_size(block.encoded_bytes())),
                Bytes(to_size(residual_bytes(block.range.size(), *cell.feedback)))};
    codec().encode(block, in.data(), {*cell.feedback, {coded.residual.data(), block.range.size()}, {}, {}},
                   coded.payload.data());
    return coded;
  }
};

INSTANTIATE_TEST_SUITE_P(Codecs, Properties, ::testing::ValuesIn(available_codecs()), codec_of);

constexpr int64_t kGroups = 300;
constexpr std::pair<int, int> kMagnitudes[] = {{-3, 3}, {-96, -60}, {60, 119}};  // far from 2^-100, and from 2^124

std::span<const float> group_of(const std::vector<float>& values, int64_t group) {
  return std::span(values).subspan(to_size(group * kGroup), kGroup);
}

// Section 4: |e| <= 2^-(bits-1) |v|, exactly; and e is what the receivers miss, so it bounds x - decoded too.
TEST_P(Properties, WhatIsLostStaysBelowTheBoundAndIsKept) {
  for (const auto& [least, most] : kMagnitudes) {
    const std::vector<float> x = normal_values(kGroups * kGroup, 1, least, most);
    const Bytes in = to_elements(x, Dtype::kFloat32);
    for (const int bits : kCodedBits) {
      const Cell cell{kGroups * kGroup, 0, {bits, false}, Dtype::kFloat32, Store::kFp32};
      Coded coded = encoded_with(cell, in);
      const std::vector<float> y = from_elements(decoded(cell.block(), coded.payload), Dtype::kFloat32);
      for (int64_t group = 0; group < kGroups; ++group) {
        const auto e = owed(coded.residual, kGroups, group, Store::kFp32);
        const float bound = largest_magnitude(group_of(x, group)) * std::exp2(1.0F - static_cast<float>(bits));
        for (std::size_t i = 0; i < kGroup; ++i) {
          const std::size_t at = to_size(group * kGroup) + i;
          ASSERT_EQ(e[i], x[at] - y[at]) << bits << " bits, element " << at;
          ASSERT_LE(std::abs(e[i]), bound) << bits << " bits, element " << at;
        }
      }
    }
  }
}

// Rotated, an element's error is at most 8 times the bound, the norm of the group's error what it is without.
TEST_P(Properties, RotationSpreadsTheErrorAndNoMore) {
  const std::vector<float> x = normal_values(kGroups * kGroup, 2);
  for (const int bits : kCodedBits) {
    const Cell cell{kGroups * kGroup, 0, {bits, true}, Dtype::kFloat32, std::nullopt};
    const std::vector<float> y =
        from_elements(decoded(cell.block(), encoded(cell.block(), to_elements(x, cell.dtype))), cell.dtype);
    for (int64_t group = 0; group < kGroups; ++group) {
      std::array<float, kGroup> turned;
      std::ranges::copy(group_of(x, group), turned.begin());
      rotate(turned);
      const double bound = std::ldexp(double{largest_magnitude(turned)}, 1 - bits) * (1 + 0x1p-16);
      double squares = 0;
      for (std::size_t i = 0; i < kGroup; ++i) {
        const double error = double{group_of(x, group)[i]} - group_of(y, group)[i];
        squares += error * error;
      }
      ASSERT_LE(squares, kGroup * bound * bound) << bits << " bits, group " << group;
    }
  }
}

// Section 8: a store loses at most half a step of es, its scale, which is max|e| / 127 (32767) rounded up to bf16. The
// last term is what fp32 rounds in e * (1/es) and r * es.
TEST_P(Properties, AStoreLosesAtMostHalfItsStep) {
  for (const auto& [least, most] : kMagnitudes) {
    const std::vector<float> x = normal_values(kGroups * kGroup, 3, least, most);
    for (const Store store : {Store::kInt8, Store::kInt16}) {
      for (const int bits : kCodedBits) {
        Cell cell{kGroups * kGroup, 0, {bits, true}, Dtype::kFloat32, Store::kFp32};
        Coded full = encoded_with(cell, to_elements(x, cell.dtype));
        cell.feedback = store;
        Coded stored = encoded_with(cell, to_elements(x, cell.dtype));
        ASSERT_EQ(full.payload, stored.payload);
        for (int64_t group = 0; group < kGroups; ++group) {
          const auto e = owed(full.residual, kGroups, group, Store::kFp32);
          const auto kept = owed(stored.residual, kGroups, group, store);
          const float largest = largest_magnitude(e);
          const float bound = largest / (2 * largest_stored(store)) * (1 + 0x1p-7F) + largest * 0x1p-22F;
          for (std::size_t i = 0; i < kGroup; ++i) {
            ASSERT_LE(std::abs(kept[i] - e[i]), bound)
                << store_name(store) << ", " << bits << " bits, group " << group << ", element " << i;
          }
        }
      }
    }
  }
}

// A14: types are converted where documented: what is owed is the difference in fp32, of the widened elements.
TEST_P(Properties, ResidualsOfSixteenBitTensorsAreDifferencesInFp32) {
  const std::vector<float> values = normal_values(kGroups * kGroup, 4, -4, 2);
  for (const Dtype dtype : {Dtype::kBfloat16, Dtype::kFloat16}) {
    const Bytes in = to_elements(values, dtype);
    const Bytes widened = to_elements(from_elements(in, dtype), Dtype::kFloat32);
    for (const Store store : kStores) {
      Cell cell{kGroups * kGroup, 0, {4, true}, dtype, store};
      const Coded narrow = encoded_with(cell, in);
      cell.dtype = Dtype::kFloat32;
      const Coded wide = encoded_with(cell, widened);
      EXPECT_EQ(narrow.payload, wide.payload) << dtype_name(dtype);
      EXPECT_EQ(narrow.residual, wide.residual) << dtype_name(dtype) << ", " << store_name(store);
    }
  }
}

// ---- accounts: what comes in is sent or stays owed -----------------------------------------------------------------

// A rank's residuals of a tensor whose middle third it owns; nothing rotated, so that sums can be written down.
struct Account {
  explicit Account(const Cell& cell)
      : groups(cell.layout().groups()),
        own(chunk_of(groups, 3, 1)),
        sender(normal_residual(groups, Store::kFp32, 11)),
        owner(normal_residual(own.size(), Store::kFp32, 12)) {}

  Residuals residuals() { return {Store::kFp32, {sender.data(), groups}, {owner.data(), own.size()}, own}; }
  [[nodiscard]] std::vector<float> sender_values() const { return from_elements(sender, Dtype::kFloat32); }
  [[nodiscard]] std::vector<float> owner_values() const { return from_elements(owner, Dtype::kFloat32); }

  int64_t groups;
  GroupRange own;
  Bytes sender;
  Bytes owner;
};

Cell account_cell(int bits) { return {9 * kGroup, 0, {bits, false}, Dtype::kFloat32, Store::kFp32}; }

// One-shot: x, what the sender owes and, on its chunk, what the owner owes, are sent together.
TEST_P(Properties, EncodePaysWhatTheSenderAndTheOwnerOwe) {
  for (const int bits : kCodedBits) {
    const Cell cell = account_cell(bits);
    const std::vector<float> x = normal_values(cell.count, 13);
    Account account(cell);
    const std::vector<float> sender = account.sender_values();
    const std::vector<float> owner = account.owner_values();
    Bytes payload(to_size(cell.block().encoded_bytes()));
    codec().encode(cell.block(), x.data(), account.residuals(), payload.data());
    const std::vector<float> sent = from_elements(decoded(cell.block(), payload), cell.dtype);
    const std::vector<float> still_owed = account.sender_values();
    for (std::size_t i = 0; i < x.size(); ++i) {
      const auto group = static_cast<int64_t>(i / kGroup);
      float v = x[i] + sender[i];
      if (account.own.contains(group)) v += owner[i - to_size(account.own.begin * kGroup)];
      ASSERT_EQ(still_owed[i], v - sent[i]) << bits << " bits, element " << i;
    }
    for (const float e : account.owner_values()) ASSERT_EQ(e, 0.0F) << bits << " bits";
  }
}

// Two-shot: the owner adds in rank order, its own addend unrounded or, batch invariant, coded; then what it owes.
TEST_P(Properties, ReduceAddsInRankOrderAndThenWhatTheOwnerOwes) {
  for (const int bits : kCodedBits) {
    for (const bool batch_invariant : {false, true}) {
      const Cell cell = account_cell(bits);
      const std::vector<float> x = normal_values(cell.count, 14);
      Account account(cell);
      const std::vector<float> sender = account.sender_values();
      const std::vector<float> owner = account.owner_values();
      Block chunk = cell.block();
      chunk.range = account.own;
      const Bytes received = encoded(chunk, to_elements(normal_values(cell.count, 15), cell.dtype));
      const std::vector<float> other = from_elements(decoded(chunk, received), cell.dtype);
      Bytes sum(received.size());
      const std::byte* payloads[] = {received.data(), nullptr, received.data()};
      codec().reduce(chunk, payloads, x.data(), account.residuals(), {1, batch_invariant, 1}, sum.data());
      const std::vector<float> sent = from_elements(decoded(chunk, sum), cell.dtype);
      const std::vector<float> sender_after = account.sender_values();
      const std::vector<float> owner_after = account.owner_values();
      const std::size_t first = to_size(account.own.begin * kGroup);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const bool owned = account.own.contains(static_cast<int64_t>(i / kGroup));
        const float v = x[i] + sender[i];
        if (!owned) {
          ASSERT_EQ(sender_after[i], sender[i]) << "of another owner, element " << i;
          continue;
        }
        ASSERT_TRUE(batch_invariant || sender_after[i] == 0.0F) << "element " << i;
        const float addend = v - sender_after[i];  // exact: what was coded
        const float total = other[i] + addend + other[i] + owner[i - first];
        ASSERT_EQ(owner_after[i - first], total - sent[i]) << bits << " bits, element " << i;
      }
    }
  }
}

// ---- one sequence of sweeps, for what must not change its bytes ----------------------------------------------------

// Encode, reduce and decode of one cell, each in the parts that `parts` makes of its range.
template <typename Parts>
std::vector<Bytes> sweeps(const Codec& codec, const Cell& cell, const Parts& parts) {
  const GroupRange all = cell.block().range;
  const GroupRange own = chunk_of(all.size(), 3, 1);
  const Bytes in = normal_elements(cell, 1);
  Bytes sender;
  Bytes owner;
  Residuals residuals;
  if (cell.feedback) {
    sender = normal_residual(all.size(), *cell.feedback, 2);
    owner = normal_residual(own.size(), *cell.feedback, 3);
    residuals = {*cell.feedback, {sender.data(), all.size()}, {owner.data(), own.size()}, own};
  }
  Block block = cell.block();
  Block chunk = block;
  chunk.range = own;
  Bytes payload(to_size(block.encoded_bytes()));
  Bytes sum(to_size(chunk.encoded_bytes()));
  Bytes other(sum.size());
  Bytes out = normal_elements(cell, 4);
  reference_codec().encode(chunk, out.data(), {}, other.data());
  for (const GroupRange part : parts(all)) {
    block.part = part;
    codec.encode(block, in.data(), residuals, payload.data());
  }
  std::vector<Bytes> trace{payload, sender, owner};
  for (const GroupRange part : parts(own)) {
    chunk.part = part;
    const std::byte* payloads[] = {other.data(), nullptr, other.data()};
    codec.reduce(chunk, payloads, in.data(), residuals, {1, true, 3}, sum.data());
  }
  trace.insert(trace.end(), {sum, sender, owner});
  for (const GroupRange part : parts(all)) {
    block.part = part;
    const std::byte* payloads[] = {payload.data()};
    codec.decode(block, payloads, residuals, {3, true}, out.data());
  }
  trace.insert(trace.end(), {out, sender, owner});
  return trace;
}

std::vector<GroupRange> undivided(GroupRange range) { return {range}; }

std::vector<GroupRange> one_by_one(GroupRange range) {
  std::vector<GroupRange> parts;
  for (int64_t group = range.end; group-- > range.begin;) parts.push_back({group, group + 1});  // last first
  return parts;
}

// A13: a sweep in parts, in any order, is the sweep over the whole.
TEST_P(Properties, PartsMakeTheWhole) {
  for (const Cell& cell : cells(1100, 220)) {  // 20 groups
    const std::vector<Bytes> expected = sweeps(codec(), cell, undivided);
    ASSERT_TRUE(sweeps(codec(), cell, one_by_one) == expected) << describe(cell) << ", one by one";
    for (int64_t cut = 1; cut < 20; ++cut) {
      const auto halves = [cut](GroupRange range) {
        const int64_t middle = std::clamp(range.begin + cut, range.begin + 1, range.end - 1);
        return std::vector<GroupRange>{{middle, range.end}, {range.begin, middle}};
      };
      ASSERT_TRUE(sweeps(codec(), cell, halves) == expected) << describe(cell) << ", cut at " << cut;
    }
  }
}

// ---- floating-point modes of the caller ----------------------------------------------------------------------------

#if defined(__x86_64__)
constexpr uint64_t kModes[] = {0x1F80 | 0x8000 | 0x0040,            // flush and read denormals as zero
                               0x1F80 | 0x2000, 0x1F80 | 0x4000,    // round down, up
                               0x1F80 | 0x8000 | 0x0040 | 0x6000};  // all of it, toward zero
uint64_t fp_mode() { return _mm_getcsr(); }
void set_fp_mode(uint64_t mode) { _mm_setcsr(static_cast<unsigned>(mode)); }
#else
constexpr uint64_t kModes[] = {1U << 24, 1U << 22, 2U << 22, 1U << 24 | 3U << 22};
uint64_t fp_mode() {
  uint64_t mode = 0;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
}
void set_fp_mode(uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
#endif

// A tensor with denormal elements, coded by `codec` while the thread is in `mode`; false: the mode did not come back.
bool coded_in_mode(const Codec& codec, const Cell& cell, uint64_t mode, std::vector<Bytes>& trace) {
  Block block = cell.block();
  std::vector<float> values = normal_values(cell.count, 1);
  for (std::size_t i = 0; i < values.size(); i += 3) values[i] *= i % 2 == 0 ? 0x1p-140F : 0x1p-16F;
  const Bytes in = to_elements(values, cell.dtype);
  Bytes residual = normal_residual(block.range.size(), *cell.feedback, 2);
  const Residuals residuals{*cell.feedback, {residual.data(), block.range.size()}, {}, {}};
  Bytes payload(to_size(block.encoded_bytes()));
  Bytes sum(payload.size());
  Bytes out = in;
  const std::byte* others[] = {nullptr, payload.data()};
  const std::byte* payloads[] = {sum.data()};
  const uint64_t before = fp_mode();
  set_fp_mode(mode);
  codec.encode(block, in.data(), residuals, payload.data());
  bool restored = fp_mode() == mode;
  codec.reduce(block, others, in.data(), residuals, {0, true, 3}, sum.data());
  restored &= fp_mode() == mode;
  codec.decode(block, payloads, residuals, {3, true}, out.data());
  restored &= fp_mode() == mode;
  set_fp_mode(before);
  trace = {payload, sum, out, residual};
  return restored;
}

TEST_P(Properties, ModesOfTheCallerChangeNothingAndComeBack) {
  for (const Cell& cell : cells(300, 100)) {
    if (!cell.feedback) continue;
    std::vector<Bytes> expected;
    std::vector<Bytes> got;
    ASSERT_TRUE(coded_in_mode(codec(), cell, fp_mode(), expected));
    for (const uint64_t mode : kModes) {
      ASSERT_TRUE(coded_in_mode(codec(), cell, mode, got)) << describe(cell) << ", mode " << mode;
      ASSERT_TRUE(got == expected) << describe(cell) << ", mode " << mode;
    }
  }
}

// ---- outputs -------------------------------------------------------------------------------------------------------

// What `decode` makes of a payload in fp32: coded payloads are the same for all types, exact ones are widened.
std::vector<float> decoded_in_fp32(const Codec& codec, const Cell& cell, const Bytes& payload, int divisor) {
  if (cell.format.exact()) return from_elements(payload, cell.dtype);
  Block block = cell.block();
  block.dtype = Dtype::kFloat32;
  std::vector<float> out(to_size(cell.count));
  const std::byte* payloads[] = {payload.data()};
  codec.decode(block, payloads, {}, {divisor, false}, out.data());
  return out;
}

// Fusing the addition to the residual stream leaves out no rounding and adds none (A13).
TEST_P(Properties, AddIsDecodeThenAnAdditionInFp32ThenOneRounding) {
  for (Cell cell : cells(1000, 100)) {
    cell.feedback.reset();
    std::vector<float> x = normal_values(cell.count, 5);
    x[320] = INFINITY;  // one poisoned group
    const std::vector<float> before = normal_values(cell.count, 6);
    const Bytes payload = encoded(cell.block(), to_elements(x, cell.dtype));
    for (const int divisor : {1, 3}) {
      Bytes out = to_elements(before, cell.dtype);
      std::vector<float> sum = from_elements(out, cell.dtype);
      const std::vector<float> y = decoded_in_fp32(codec(), cell, payload, divisor);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += y[i];
      const std::byte* payloads[] = {payload.data()};
      codec().decode(cell.block(), payloads, {}, {divisor, true}, out.data());
      for (float& s : sum) {
        if (std::isnan(s)) s = Fp32::nan();
      }
      ASSERT_EQ(out, to_elements(sum, cell.dtype)) << describe(cell) << ", divisor " << divisor;
    }
  }
}

// A13: decoded over its own input, the tensor is the same as decoded elsewhere.
TEST_P(Properties, InPlaceIsOutOfPlace) {
  for (const Cell& cell : cells(1000, 100)) {
    if (cell.feedback) continue;
    Bytes tensor = normal_elements(cell, 7);
    const Bytes payload = encoded(cell.block(), tensor);
    const std::byte* payloads[] = {payload.data()};
    codec().decode(cell.block(), payloads, {}, {}, tensor.data());
    ASSERT_EQ(tensor, decoded(cell.block(), payload)) << describe(cell);
  }
}

}  // namespace
}  // namespace echo_comm::core
