// What every all-reduce owes its callers, over threads and processes, any number of ranks, any size.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/collective/support.hpp"

namespace echo_comm::testing {
namespace {

constexpr std::size_t kGroup = ECHO_GROUP;

class AllReduce : public OnRanks {};

INSTANTIATE_TEST_SUITE_P(Ranks, AllReduce,
                         ::testing::ValuesIn(ranks_on({Kind::kInproc, Kind::kShm}, {1, 2, 3, 4, 5, 7, 8}) +
                                             ranks_on({Kind::kGloo}, {1, 2, 3, 5})),
                         name_of_ranks);

const std::vector<std::size_t> kCounts = {0, 1, 2, 63, 64, 65, 127, 129, 64 * 7, 64 * 8 + 1, 6000};

// I1, C1, C2: bit-identical outputs on all ranks, close to the exact sum, for every type, width and algorithm.
// B2, B3, B10: ranks that own nothing take part.
TEST_P(AllReduce, EveryRankHoldsTheSameBytesCloseToTheExactSum) {
  constexpr std::size_t kMax = 6000;
  const SharedArray<std::byte> outs(static_cast<std::size_t>(size()) * kMax * 4);
  struct Option {
    int bits;
    echo_algorithm_t algorithm;
  };
  std::vector<Option> options = {{0, ECHO_ALGORITHM_AUTO}, {16, ECHO_ALGORITHM_AUTO}};
  for (const int bits : {3, 4, 8}) {
    for (const echo_algorithm_t algorithm : {ECHO_ONE_SHOT, ECHO_TWO_SHOT}) options.push_back({bits, algorithm});
  }
  for (const echo_dtype_t dtype : {ECHO_FLOAT32, ECHO_BFLOAT16, ECHO_FLOAT16}) {
    for (const Option& option : options) {
      // Processes are started once for each option, so they do a few sizes; threads do all.
      const std::vector<std::size_t> counts = kind() == Kind::kInproc ? kCounts : std::vector<std::size_t>{1, 65, 6000};
      for (const std::size_t count : counts) {
        over_comm(kind(), size(), [&](echo_comm_t comm) {
          echo_call_t call ECHO_CALL_INITIALIZER;
          call.bits = option.bits;
          call.algorithm = option.algorithm;
          Tensor in(values_of(echo_comm_rank(comm), count), dtype);
          Tensor out(count, dtype);
          ASSERT_EQ(all_reduce(in, out, comm, nullptr, call), ECHO_SUCCESS) << echo_last_error();
          std::ranges::copy(out.bytes(), outs.part(static_cast<std::size_t>(echo_comm_rank(comm)), kMax * 4).begin());
        });
        const std::size_t bytes = count * (dtype == ECHO_FLOAT32 ? 4 : 2);
        for (int rank = 1; rank < size(); ++rank) {
          ASSERT_EQ(std::memcmp(outs.data(), outs.part(static_cast<std::size_t>(rank), kMax * 4).data(), bytes), 0)
              << "rank " << rank << " of " << size() << ", count " << count << ", bits " << option.bits;
        }
        Tensor sum(count, dtype);
        std::copy_n(outs.data(), bytes, sum.data());
        const std::vector<double> exact = exact_sum(size(), count);
        // Normal values: |Hx| < 6; each rounding is off by one step at most, two-shot rounds the sum as well.
        const int bits = option.bits == 0 ? 4 : option.bits;
        const double step = size() == 1 ? 0 : 6.0 * size() * 2 * std::exp2(1.0 - bits) * 8;
        for (std::size_t i = 0; i < count; ++i) {
          ASSERT_NEAR(sum.get(i), exact[i], step + 0.02 * size()) << "bits " << bits << " element " << i;
        }
      }
      if (kind() == Kind::kShm && option.bits == 3) break;  // the widths do not differ by transport
    }
  }
}

// A13: in place gives the bytes of out of place; segments do not move bits (pieces of 4 KiB against the default).
TEST_P(AllReduce, InPlaceAndAnySegmentSizeGiveTheSameBytes) {
  constexpr std::size_t kCount = 64 * 1000 + 17;
  for (const int bits : {4, 16}) {
    const SharedArray<float> outs(4 * kCount);
    for (const int variant : {0, 1, 2, 3}) {
      echo_config_t config ECHO_CONFIG_INITIALIZER;
      config.slot_bytes = variant >= 2 ? 4096 : 0;
      over_comm(
          kind(), size(),
          [&](echo_comm_t comm) {
            echo_feedback_t feedback = nullptr;
            ASSERT_EQ(echo_feedback_create(comm, kCount, ECHO_STORE_FP32, &feedback), ECHO_SUCCESS);
            echo_call_t call ECHO_CALL_INITIALIZER;
            call.bits = bits;
            std::vector<float> out(kCount);
            for (uint32_t index = 0; index < 3; ++index) {
              std::vector<float> in = values_of(echo_comm_rank(comm), kCount, index);
              float* target = variant % 2 == 0 ? out.data() : in.data();
              ASSERT_EQ(echo_all_reduce(in.data(), target, kCount, ECHO_FLOAT32, comm, feedback, &call), ECHO_SUCCESS)
                  << echo_last_error();
              if (variant % 2 == 1) out = in;
            }
            if (echo_comm_rank(comm) == size() - 1) {
              std::ranges::copy(out, outs.part(static_cast<std::size_t>(variant), kCount).begin());
            }
            echo_feedback_destroy(feedback);
          },
          config);
    }
    for (std::size_t variant = 1; variant < 4; ++variant) {
      EXPECT_EQ(std::memcmp(outs.data(), outs.part(variant, kCount).data(), kCount * sizeof(float)), 0)
          << "variant " << variant << " bits " << bits;
    }
  }
}

// Nothing is owed before the first coded call of a pass: exact calls give the bytes of calls without residuals, zeros of
// both signs, infinities and NaN included, and leave the pass as they found it.
TEST_P(AllReduce, ExactCallsBeforeTheFirstCodedOneLeaveNoTrace) {
  constexpr std::size_t kCount = 64 * 20 + 5;
  over_comm(kind(), size(), [&](echo_comm_t comm) {
    for (const echo_dtype_t dtype : {ECHO_FLOAT32, ECHO_BFLOAT16, ECHO_FLOAT16}) {
      std::vector<float> values = values_of(echo_comm_rank(comm), kCount);
      values[3] = -0.0F;
      values[70] = std::numeric_limits<float>::quiet_NaN();
      values[140] = std::numeric_limits<float>::infinity();
      echo_feedback_t feedback = nullptr;
      ASSERT_EQ(echo_feedback_create(comm, kCount, ECHO_STORE_INT8, &feedback), ECHO_SUCCESS);
      std::vector<std::byte> exact;
      std::vector<std::byte> coded;
      for (const bool with_feedback : {false, true}) {
        Tensor in(values, dtype);
        Tensor out(kCount, dtype);
        echo_call_t call ECHO_CALL_INITIALIZER;
        call.bits = ECHO_BITS_EXACT;
        ASSERT_EQ(all_reduce(in, out, comm, with_feedback ? feedback : nullptr, call), ECHO_SUCCESS);
        const std::vector<std::byte> first(out.bytes().begin(), out.bytes().end());
        float sender = -1.0F;
        float owner = -1.0F;
        ASSERT_EQ(echo_feedback_norms(feedback, &sender, &owner), ECHO_SUCCESS);
        EXPECT_EQ(sender, 0.0F);
        EXPECT_EQ(owner, 0.0F);
        call.bits = 4;  // without the exact call before it: in a pass of its own
        if (!with_feedback) {
          ASSERT_EQ(echo_feedback_reset(feedback), ECHO_SUCCESS);
        }
        ASSERT_EQ(all_reduce(in, out, comm, feedback, call), ECHO_SUCCESS);
        const std::vector<std::byte> second(out.bytes().begin(), out.bytes().end());
        ASSERT_EQ(echo_feedback_reset(feedback), ECHO_SUCCESS);
        if (!with_feedback) {
          exact = first;
          coded = second;
          continue;
        }
        EXPECT_EQ(first, exact) << "type " << dtype;
        EXPECT_EQ(second, coded) << "type " << dtype;
      }
      echo_feedback_destroy(feedback);
    }
  });
}

// Exactness: values on the grid of the codes come out exactly, with the codec on.
TEST_P(AllReduce, IsExactOnTheGrid) {
  constexpr std::size_t kCount = 64 * 50;
  over_comm(kind(), size(), [&](echo_comm_t comm) {
    for (const int bits : {3, 4, 5, 6, 8}) {
      for (const echo_algorithm_t algorithm : {ECHO_ONE_SHOT, ECHO_TWO_SHOT}) {
        echo_call_t call ECHO_CALL_INITIALIZER;
        call.bits = bits;
        call.algorithm = algorithm;
        call.rotation = ECHO_OFF;
        const int half = 1 << (bits - 1);
        std::vector<float> in(kCount);
        for (std::size_t i = 0; i < kCount; ++i) {
          const int code = i % kGroup == 0 ? -half : static_cast<int>((i * 7) % static_cast<std::size_t>(half));
          in[i] = static_cast<float>(code) * 0.25F;
        }
        std::vector<float> out(kCount);
        ASSERT_EQ(echo_all_reduce(in.data(), out.data(), kCount, ECHO_FLOAT32, comm, nullptr, &call), ECHO_SUCCESS);
        for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(out[i], in[i] * static_cast<float>(size())) << i;
      }
    }
  });
}

// B4: nothing to sum succeeds and counts. R5, B9: one rank gets its bytes back.
TEST_P(AllReduce, NothingSucceedsAndOneRankIsPassedThrough) {
  over_comm(kind(), size(), [&](echo_comm_t comm) {
    ASSERT_EQ(echo_all_reduce(nullptr, nullptr, 0, ECHO_BFLOAT16, comm, nullptr, nullptr), ECHO_SUCCESS);
    if (size() == 1) {
      Tensor in(std::vector<float>{1.0F, NAN, -0.0F, INFINITY, 1e-42F}, ECHO_FLOAT32);
      Tensor out(in.count(), ECHO_FLOAT32);
      echo_feedback_t feedback = nullptr;
      ASSERT_EQ(echo_feedback_create(comm, 5, ECHO_STORE_FP32, &feedback), ECHO_SUCCESS);
      ASSERT_EQ(all_reduce(in, out, comm, feedback, ECHO_CALL_INITIALIZER), ECHO_SUCCESS);
      EXPECT_EQ(in.bytes(), out.bytes());
      float sender = 1;
      float owner = 1;
      ASSERT_EQ(echo_feedback_norms(feedback, &sender, &owner), ECHO_SUCCESS);
      EXPECT_EQ(sender, 0.0F);
      EXPECT_EQ(owner, 0.0F);
      echo_feedback_destroy(feedback);
    }
    echo_stats_t stats ECHO_STATS_INITIALIZER;
    ASSERT_EQ(echo_comm_stats(comm, &stats), ECHO_SUCCESS);
    EXPECT_EQ(stats.calls, size() == 1 ? 2U : 1U);
    EXPECT_EQ(stats.passed_calls, size() == 1 ? 2U : 0U);
  });
}

// R3, A6: a value that is not finite poisons its group on every rank, nothing else, and nothing stays.
TEST_P(AllReduce, PoisonStaysInItsGroupAndIsCounted) {
  if (size() == 1) GTEST_SKIP() << "one rank is passed through untouched";
  constexpr std::size_t kCount = 640;
  for (const echo_algorithm_t algorithm : {ECHO_ONE_SHOT, ECHO_TWO_SHOT}) {
    over_comm(kind(), size(), [&](echo_comm_t comm) {
      echo_call_t call ECHO_CALL_INITIALIZER;
      call.algorithm = algorithm;
      echo_feedback_t feedback = nullptr;
      ASSERT_EQ(echo_feedback_create(comm, kCount, ECHO_STORE_FP32, &feedback), ECHO_SUCCESS);
      const std::vector<float> bad = {NAN, INFINITY, -INFINITY, 3e38F};
      for (std::size_t index = 0; index < bad.size(); ++index) {
        std::vector<float> in = values_of(echo_comm_rank(comm), kCount);
        std::vector<float> clean(kCount);
        ASSERT_EQ(echo_feedback_reset(feedback), ECHO_SUCCESS);
        ASSERT_EQ(echo_all_reduce(in.data(), clean.data(), kCount, ECHO_FLOAT32, comm, feedback, &call), ECHO_SUCCESS);
        ASSERT_EQ(echo_feedback_reset(feedback), ECHO_SUCCESS);
        if (echo_comm_rank(comm) == 1) in[64 * 3 + 31] = bad[index];
        std::vector<float> out(kCount);
        ASSERT_EQ(echo_all_reduce(in.data(), out.data(), kCount, ECHO_FLOAT32, comm, feedback, &call), ECHO_SUCCESS);
        for (std::size_t i = 0; i < kCount; ++i) {
          if (i / kGroup == 3) {
            ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), 0x7FC00000U) << i;
          } else {
            ASSERT_EQ(out[i], clean[i]) << i;
          }
        }
        echo_stats_t stats ECHO_STATS_INITIALIZER;
        ASSERT_EQ(echo_comm_stats(comm, &stats), ECHO_SUCCESS);
        EXPECT_EQ(stats.poisoned_groups, index + 1);
        ASSERT_EQ(echo_all_reduce(clean.data(), out.data(), kCount, ECHO_FLOAT32, comm, feedback, &call), ECHO_SUCCESS);
        for (const float x : out) ASSERT_TRUE(std::isfinite(x)) << "nothing of it may stay in a residual";
      }
      echo_feedback_destroy(feedback);
    });
  }
}

// Finite inputs whose sum is 2^124 and more fall under R3 as well; an infinity can only arise in fp16 (A1).
TEST_P(AllReduce, LargeFiniteValuesBecomeNanOrInfinityAlikeOnAllRanks) {
  if (size() == 1) GTEST_SKIP() << "one rank is passed through untouched";
  over_comm(kind(), size(), [&](echo_comm_t comm) {
    std::vector<float> in(128, 1.0F);
    std::fill(in.begin(), in.begin() + 64, 1e37F);
    std::vector<float> out(128);
    ASSERT_EQ(echo_all_reduce(in.data(), out.data(), 128, ECHO_FLOAT32, comm, nullptr, nullptr), ECHO_SUCCESS);
    EXPECT_TRUE(std::isnan(out[0]) && std::isnan(out[63]));
    EXPECT_NEAR(out[64], size(), 0.3 * size());

    Tensor half(std::vector<float>(128, 40000.0F), ECHO_FLOAT16);
    for (std::size_t i = 64; i < 128; ++i) half.set(i, 1.0F);
    ASSERT_EQ(all_reduce(half, half, comm, nullptr, ECHO_CALL_INITIALIZER), ECHO_SUCCESS);
    EXPECT_EQ(half.get(5), INFINITY);
    EXPECT_NEAR(half.get(100), size(), 0.3 * size());

    Tensor wide(std::vector<float>(192, 1.0F), ECHO_BFLOAT16);
    for (std::size_t i = 0; i < 64; ++i) wide.set(i, 1e30F);
    for (std::size_t i = 64; i < 128; ++i) wide.set(i, -1e30F);
    ASSERT_EQ(all_reduce(wide, wide, comm, nullptr, ECHO_CALL_INITIALIZER), ECHO_SUCCESS);
    EXPECT_NEAR(wide.get(3) / 1e30, size(), 0.3 * size());
    EXPECT_NEAR(wide.get(67) / 1e30, -size(), 0.3 * size());
    EXPECT_NEAR(wide.get(130), size(), 0.3 * size());
  });
}

// A3, A4: zeros on all ranks, on one, on all but one.
TEST_P(AllReduce, ZerosStayExactZeros) {
  over_comm(kind(), size(), [&](echo_comm_t comm) {
    for (const int live : {0, 1, size() - 1, size()}) {
      std::vector<float> in(256, 0.0F);
      if (echo_comm_rank(comm) < live) std::fill_n(in.begin() + 64, 64, 1e-6F);
      std::vector<float> out(256, 7.0F);
      ASSERT_EQ(echo_all_reduce(in.data(), out.data(), 256, ECHO_FLOAT32, comm, nullptr, nullptr), ECHO_SUCCESS);
      for (std::size_t i = 0; i < 256; ++i) {
        if (i / 64 == 1) {
          ASSERT_NEAR(out[i], 1e-6 * live, 1e-6);
        } else {
          ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), 0U) << i;
        }
      }
    }
  });
}

TEST_P(AllReduce, AverageIsTheSumDividedOnce) {
  constexpr std::size_t kCount = 1000;
  over_comm(kind(), size(), [&](echo_comm_t comm) {
    for (const int bits : {4, 16}) {
      for (const echo_algorithm_t algorithm : {ECHO_ALGORITHM_AUTO, ECHO_TWO_SHOT}) {
        std::vector<float> in = values_of(echo_comm_rank(comm), kCount);
        std::vector<float> sum(kCount);
        std::vector<float> average(kCount);
        echo_call_t call ECHO_CALL_INITIALIZER;
        call.bits = bits;
        call.algorithm = algorithm;
        ASSERT_EQ(echo_all_reduce(in.data(), sum.data(), kCount, ECHO_FLOAT32, comm, nullptr, &call), ECHO_SUCCESS);
        call.op = ECHO_AVG;
        ASSERT_EQ(echo_all_reduce(in.data(), average.data(), kCount, ECHO_FLOAT32, comm, nullptr, &call), ECHO_SUCCESS);
        for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(average[i], sum[i] / static_cast<float>(size()));
      }
    }
  });
}

// Exact path: element-wise NaN, exact sums of integers in every type.
TEST_P(AllReduce, ExactPathSumsIntegersExactlyAndKeepsNanToItsElement) {
  constexpr std::size_t kCount = 1000;
  over_comm(kind(), size(), [&](echo_comm_t comm) {
    echo_call_t call ECHO_CALL_INITIALIZER;
    call.bits = ECHO_BITS_EXACT;
    for (const echo_dtype_t dtype : {ECHO_FLOAT32, ECHO_BFLOAT16, ECHO_FLOAT16}) {
      Tensor in(kCount, dtype);
      for (std::size_t i = 0; i < kCount; ++i) in.set(i, static_cast<float>(i % 16));
      if (echo_comm_rank(comm) == size() - 1) in.set(500, NAN);
      ASSERT_EQ(all_reduce(in, in, comm, nullptr, call), ECHO_SUCCESS);
      for (std::size_t i = 0; i < kCount; ++i) {
        if (i == 500) {
          ASSERT_TRUE(std::isnan(in.get(i)));
        } else {
          ASSERT_EQ(in.get(i), static_cast<float>((i % 16) * static_cast<std::size_t>(size())));
        }
      }
    }
  });
}

// C3: batch invariant, a token's bits depend on that token alone: one row of 16 against the row by itself.
TEST_P(AllReduce, BatchInvariantRowsDoNotDependOnTheBatch) {
  constexpr std::size_t kRow = 576;
  constexpr std::size_t kRows = 16;
  echo_config_t config ECHO_CONFIG_INITIALIZER;
  config.batch_invariant = ECHO_ON;
  over_comm(
      kind(), size(),
      [&](echo_comm_t comm) {
        std::vector<float> in = values_of(echo_comm_rank(comm), kRow * kRows);
        std::vector<float> out(in.size());
        ASSERT_EQ(echo_all_reduce(in.data(), out.data(), in.size(), ECHO_FLOAT32, comm, nullptr, nullptr),
                  ECHO_SUCCESS);
        for (std::size_t row = 0; row < kRows; ++row) {
          std::vector<float> one(kRow);
          ASSERT_EQ(echo_all_reduce(&in[row * kRow], one.data(), kRow, ECHO_FLOAT32, comm, nullptr, nullptr),
                    ECHO_SUCCESS);
          ASSERT_EQ(std::memcmp(one.data(), &out[row * kRow], kRow * sizeof(float)), 0) << "row " << row;
        }
      },
      config);
}

// numerics.md section 3: 2 (W-1)/W * n * 4.25/8 bytes, headers on top; every message is counted.
TEST_P(AllReduce, SendsTheBytesOfTheSpecification) {
  if (size() == 1) GTEST_SKIP() << "one rank sends nothing";
  constexpr std::size_t kCount = 64 * 840 * 4;  // 840 divides by 2..8: equal chunks
  over_comm(kind(), size(), [&](echo_comm_t comm) {
    std::vector<float> in = values_of(echo_comm_rank(comm), kCount);
    echo_call_t call ECHO_CALL_INITIALIZER;
    call.algorithm = ECHO_TWO_SHOT;
    ASSERT_EQ(echo_all_reduce(in.data(), in.data(), kCount, ECHO_FLOAT32, comm, nullptr, &call), ECHO_SUCCESS);
    echo_stats_t stats ECHO_STATS_INITIALIZER;
    ASSERT_EQ(echo_comm_stats(comm, &stats), ECHO_SUCCESS);
    const std::size_t codes =
        2 * (static_cast<std::size_t>(size()) - 1) * (kCount / static_cast<std::size_t>(size())) * 34 / 64;
    EXPECT_EQ(stats.payload_bytes, codes + 32 * stats.messages);
    EXPECT_EQ(stats.logical_bytes, kCount * 4);
    EXPECT_EQ(stats.coded_calls, 1U);
  });
}

// D5 and I3: sizes, types and algorithms in any order on two communicators.
TEST_P(AllReduce, AlternatingCallsOnTwoCommunicatorsDoNotMix) {
  if (kind() != Kind::kInproc) GTEST_SKIP() << "threads do it; the transports' own tests interleave processes";
  std::vector<echo_comm_t> second(static_cast<std::size_t>(size()));
  ASSERT_EQ(echo_comm_create_all(size(), nullptr, second.data()), ECHO_SUCCESS);
  over_comm(kind(), size(), [&](echo_comm_t first) {
    Random random(7);  // the same on every rank
    for (int index = 0; index < 300; ++index) {
      echo_comm_t comm = random.below(2) == 0 ? first : second[static_cast<std::size_t>(echo_comm_rank(first))];
      const std::size_t count = random.below(3) == 0 ? random.below(20'000) : random.below(200);
      echo_call_t call ECHO_CALL_INITIALIZER;
      call.bits = ECHO_BITS_EXACT;
      if (random.below(2) == 0) {
        call.bits = 8;
        call.rotation = ECHO_OFF;  // equal values of a group are on the grid of its codes: exact
      }
      std::vector<float> data(count, static_cast<float>(echo_comm_rank(first) + index % 5));
      ASSERT_EQ(echo_all_reduce(data.data(), data.data(), count, ECHO_FLOAT32, comm, nullptr, &call), ECHO_SUCCESS)
          << echo_last_error();
      const float expected = static_cast<float>(size() * (index % 5) + size() * (size() - 1) / 2);
      for (const float x : data) ASSERT_EQ(x, expected) << "call " << index;
    }
  });
  for (echo_comm_t comm : second) echo_comm_destroy(comm);
}

}  // namespace
}  // namespace echo_comm::testing
