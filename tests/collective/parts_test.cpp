// Reduce-scatter, all-gather, broadcast and barrier: over threads and processes, any number of ranks, even and uneven
// parts, empty ones too.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/collective/support.hpp"

namespace echo_comm::testing {
namespace {

class Parts : public OnRanks {};

INSTANTIATE_TEST_SUITE_P(Ranks, Parts,
                         ::testing::ValuesIn(ranks_on({Kind::kInproc}, {1, 2, 3, 4, 5, 7, 8, 16, 64}) +
                                             ranks_on({Kind::kShm}, {1, 2, 3, 5, 8}) +
                                             ranks_on({Kind::kGloo}, {2, 3, 5})),
                         name_of_ranks);

// Parts of every kind in one tensor: none, less than a group, groups and a bit.
std::vector<std::size_t> uneven_counts(int size) {
  constexpr std::array<std::size_t, 7> kCounts = {65, 0, 1, 640, 63, 200, 64};
  std::vector<std::size_t> counts;
  for (int rank = 0; rank < size; ++rank) counts.push_back(kCounts[static_cast<std::size_t>(rank) % kCounts.size()]);
  return counts;
}

std::size_t offset_of(const std::vector<std::size_t>& counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, std::size_t{0});
}

std::size_t total(const std::vector<std::size_t>& counts) { return offset_of(counts, static_cast<int>(counts.size())); }

// Whole numbers, small enough to be exact in every type whatever the order of the sum.
float number_of(int rank, std::size_t i) {
  return static_cast<float>(static_cast<int>((i * 7 + static_cast<std::size_t>(rank) * 3) % 5) - 2);
}

Tensor numbers_of(int rank, std::size_t begin, std::size_t count, echo_dtype_t dtype) {
  Tensor tensor(count, dtype);
  for (std::size_t i = 0; i < count; ++i) tensor.set(i, number_of(rank, begin + i));
  return tensor;
}

constexpr echo_dtype_t kDtypes[] = {ECHO_FLOAT32, ECHO_BFLOAT16, ECHO_FLOAT16};

TEST_P(Parts, ReduceScatterSumsExactlyOnTheExactPath) {
  const std::vector<std::size_t> counts = uneven_counts(size());
  const std::size_t count = total(counts);
  over_comm(kind(), size(), [&](echo_comm_t comm) {
    const int rank = echo_comm_rank(comm);
    const std::size_t own = counts[static_cast<std::size_t>(rank)];
    const std::size_t begin = offset_of(counts, rank);
    for (const echo_dtype_t dtype : kDtypes) {
      for (const bool in_place : {false, true}) {
        echo_call_t call ECHO_CALL_INITIALIZER;
        call.bits = ECHO_BITS_EXACT;
        Tensor in = numbers_of(rank, 0, count, dtype);
        Tensor apart(own, dtype);
        std::byte* out = in_place ? in.data() + begin * (dtype == ECHO_FLOAT32 ? 4 : 2) : apart.data();
        ASSERT_EQ(echo_reduce_scatter(in.data(), out, count, counts.data(), dtype, comm, nullptr, &call), ECHO_SUCCESS)
            << echo_last_error();
        for (std::size_t i = 0; i < own; ++i) {
          float sum = 0;
          for (int r = 0; r < size(); ++r) sum += number_of(r, begin + i);
          ASSERT_EQ(in_place ? in.get(begin + i) : apart.get(i), sum) << "element " << i << " of rank " << rank;
        }
      }
    }
  });
}

TEST_P(Parts, CodedReduceScatterIsCloseAndAverages) {
  const std::vector<std::size_t> counts = uneven_counts(size());
  const std::size_t count = total(counts);
  const std::vector<double> exact = exact_sum(size(), count);
  over_comm(kind(), size(), [&](echo_comm_t comm) {
    const int rank = echo_comm_rank(comm);
    const std::size_t own = counts[static_cast<std::size_t>(rank)];
    for (const echo_op_t op : {ECHO_SUM, ECHO_AVG}) {
      echo_call_t call ECHO_CALL_INITIALIZER;
      call.op = op;
      const std::vector<float> in = values_of(rank, count);
      std::vector<float> out(own);
      ASSERT_EQ(echo_reduce_scatter(in.data(), out.data(), count, counts.data(), ECHO_FLOAT32, comm, nullptr, &call),
                ECHO_SUCCESS);
      const double divisor = op == ECHO_AVG ? size() : 1;
      const double step = size() == 1 ? 1e-6 : 6.0 / 8 * (size() - 1) * 8;  // each foreign addend rounded once
      for (std::size_t i = 0; i < own; ++i) {
        ASSERT_NEAR(out[i] * divisor, exact[offset_of(counts, rank) + i], step) << "element " << i;
      }
    }
  });
}

// numerics.md section 4: with residuals the error of the running sum stays that of one call, without it grows.
TEST_P(Parts, ReduceScatterWithFeedbackOwesOnlyTheLastCall) {
  if (size() == 1) GTEST_SKIP() << "one rank rounds nothing";
  const std::vector<std::size_t> counts = uneven_counts(size());
  const std::size_t count = total(counts);
  constexpr uint32_t kCalls = 40;
  std::vector<std::vector<double>> sums;  // once, not on each of 64 ranks
  for (uint32_t index = 0; index < kCalls; ++index) sums.push_back(exact_sum(size(), count, index));
  over_comm(kind(), size(), [&](echo_comm_t comm) {
    const int rank = echo_comm_rank(comm);
    const std::size_t own = counts[static_cast<std::size_t>(rank)];
    double with = 0, without = 0;
    for (const bool feedback_on : {true, false}) {
      echo_feedback_t feedback = nullptr;
      ASSERT_EQ(echo_feedback_create(comm, count, ECHO_STORE_FP32, &feedback), ECHO_SUCCESS);
      std::vector<double> error(own);
      for (uint32_t index = 0; index < kCalls; ++index) {
        const std::vector<float> in = values_of(rank, count, index);
        const std::vector<double>& exact = sums[index];
        std::vector<float> out(own);
        ASSERT_EQ(echo_reduce_scatter(in.data(), out.data(), count, counts.data(), ECHO_FLOAT32, comm,
                                      feedback_on ? feedback : nullptr, nullptr),
                  ECHO_SUCCESS)
            << echo_last_error();
        for (std::size_t i = 0; i < own; ++i) error[i] += out[i] - exact[offset_of(counts, rank) + i];
      }
      double& square = feedback_on ? with : without;
      for (const double e : error) square += e * e;
      echo_feedback_destroy(feedback);
    }
    if (own > 64) {
      EXPECT_LT(with * 5, without) << "rank " << rank;  // about kCalls times less
    }
  });
}

TEST_P(Parts, AllGatherIsExactOnTheExactPathAndTheSameEverywhereWhenCoded) {
  const std::vector<std::size_t> counts = uneven_counts(size());
  const std::size_t count = total(counts);
  const SharedArray<std::byte> outs(static_cast<std::size_t>(size()) * count * 4);
  for (const echo_dtype_t dtype : kDtypes) {
    over_comm(kind(), size(), [&](echo_comm_t comm) {
      const int rank = echo_comm_rank(comm);
      const std::size_t own = counts[static_cast<std::size_t>(rank)];
      const std::size_t begin = offset_of(counts, rank);
      for (const int bits : {ECHO_BITS_EXACT, 0}) {
        for (const bool in_place : {false, true}) {
          echo_call_t call ECHO_CALL_INITIALIZER;
          call.bits = bits;
          Tensor in = numbers_of(rank, begin, own, dtype);
          Tensor out(count, dtype);
          std::byte* own_place = out.data() + begin * (dtype == ECHO_FLOAT32 ? 4 : 2);
          if (in_place) std::ranges::copy(in.bytes(), own_place);
          ASSERT_EQ(
              echo_all_gather(in_place ? own_place : in.data(), out.data(), count, counts.data(), dtype, comm, &call),
              ECHO_SUCCESS)
              << echo_last_error();
          for (int r = 0; r < size(); ++r) {
            for (std::size_t i = 0; i < counts[static_cast<std::size_t>(r)]; ++i) {
              const std::size_t at = offset_of(counts, r) + i;
              ASSERT_NEAR(out.get(at), number_of(r, at), bits == 0 && size() > 1 ? 2.0 : 0.0) << "element " << at;
            }
          }
          std::ranges::copy(out.bytes(), outs.part(static_cast<std::size_t>(rank), count * 4).begin());
        }
      }
    });
    const std::size_t bytes = count * (dtype == ECHO_FLOAT32 ? 4 : 2);
    for (int rank = 1; rank < size(); ++rank) {  // C1
      ASSERT_EQ(std::memcmp(outs.data(), outs.part(static_cast<std::size_t>(rank), count * 4).data(), bytes), 0)
          << "rank " << rank;
    }
  }
}

// Sequence parallelism takes an all-reduce apart: on groups that fall the same way, both halves give its sum.
TEST_P(Parts, ReduceScatterThenAllGatherIsAnExactAllReduce) {
  const auto ranks = static_cast<std::size_t>(size());
  const std::size_t count = ranks * 130;
  over_comm(kind(), size(), [&](echo_comm_t comm) {
    const int rank = echo_comm_rank(comm);
    echo_call_t call ECHO_CALL_INITIALIZER;
    call.bits = ECHO_BITS_EXACT;
    call.row_length = 13;
    const std::vector<float> in = values_of(rank, count);
    std::vector<float> part(130);
    std::vector<float> gathered(count);
    std::vector<float> reduced(count);
    ASSERT_EQ(echo_reduce_scatter(in.data(), part.data(), count, nullptr, ECHO_FLOAT32, comm, nullptr, &call),
              ECHO_SUCCESS);
    ASSERT_EQ(echo_all_gather(part.data(), gathered.data(), count, nullptr, ECHO_FLOAT32, comm, &call), ECHO_SUCCESS);
    ASSERT_EQ(echo_all_reduce(in.data(), reduced.data(), count, ECHO_FLOAT32, comm, nullptr, &call), ECHO_SUCCESS);
    EXPECT_EQ(std::memcmp(gathered.data(), reduced.data(), count * sizeof(float)), 0);
  });
}

TEST_P(Parts, BroadcastCopiesEveryBitFromAnyRootAndBarriersHold) {
  constexpr std::size_t kCount = 10'000;
  const SharedArray<int64_t> arrived(1);
  over_comm(kind(), size(), [&](echo_comm_t comm) {
    const int rank = echo_comm_rank(comm);
    for (int root = 0; root < size(); root += std::max(1, size() / 3)) {
      std::vector<uint32_t> out(kCount, 0);
      std::vector<uint32_t> in(kCount);
      for (std::size_t i = 0; i < kCount; ++i)
        in[i] = static_cast<uint32_t>(i * 2654435761U + static_cast<uint32_t>(root));
      in[5] = 0x7F800001U;  // a signalling NaN stays one
      const void* from = rank == root ? in.data() : nullptr;
      ASSERT_EQ(echo_broadcast(from, out.data(), kCount, ECHO_FLOAT32, root, comm), ECHO_SUCCESS) << echo_last_error();
      ASSERT_EQ(out, in) << "root " << root << " rank " << rank;
    }
    std::atomic_ref<int64_t> counter(arrived[0]);
    for (int64_t round = 1; round <= 3; ++round) {
      counter.fetch_add(1);
      ASSERT_EQ(echo_barrier(comm), ECHO_SUCCESS) << echo_last_error();
      ASSERT_GE(counter.load(), round * size()) << "nobody leaves before all came";
      ASSERT_EQ(echo_barrier(comm), ECHO_SUCCESS);
    }
    echo_stats_t stats ECHO_STATS_INITIALIZER;
    ASSERT_EQ(echo_comm_stats(comm, &stats), ECHO_SUCCESS);
    EXPECT_EQ(stats.calls, 0U);
    EXPECT_GE(stats.control_calls, 7U);
  });
}

// D5: different collectives in turn, one rank late at random; segments of 4 KiB, so that all of them overlap.
TEST_P(Parts, DifferentCollectivesInTurnNeverMix) {
  echo_config_t config ECHO_CONFIG_INITIALIZER;
  config.slot_bytes = 4096;
  const std::size_t each = 700;
  const auto ranks = static_cast<std::size_t>(size());
  over_comm(
      kind(), size(),
      [&](echo_comm_t comm) {
        const int rank = echo_comm_rank(comm);
        echo_call_t call ECHO_CALL_INITIALIZER;
        call.bits = ECHO_BITS_EXACT;
        Random late(static_cast<uint64_t>(rank));
        const std::size_t count = each * ranks;
        std::vector<float> in(count), out(count);
        for (uint32_t round = 0; round < (size() > 16 ? 3 : 12); ++round) {
          for (std::size_t i = 0; i < count; ++i) in[i] = number_of(rank, i + round);
          if (late.below(4) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
          ASSERT_EQ(echo_all_reduce(in.data(), out.data(), count, ECHO_FLOAT32, comm, nullptr, &call), ECHO_SUCCESS);
          float sum = 0;
          for (int r = 0; r < size(); ++r) sum += number_of(r, count - 1 + round);
          ASSERT_EQ(out[count - 1], sum);
          ASSERT_EQ(echo_all_gather(in.data(), out.data(), count, nullptr, ECHO_FLOAT32, comm, &call), ECHO_SUCCESS);
          ASSERT_EQ(out[(ranks - 1) * each], number_of(size() - 1, round)) << echo_last_error();
          ASSERT_EQ(echo_reduce_scatter(in.data(), out.data(), count, nullptr, ECHO_FLOAT32, comm, nullptr, &call),
                    ECHO_SUCCESS);
          float own = 0;
          for (int r = 0; r < size(); ++r) own += number_of(r, static_cast<std::size_t>(rank) * each + round);
          ASSERT_EQ(out[0], own);
          if (round % 3 == 0) {
            ASSERT_EQ(echo_barrier(comm), ECHO_SUCCESS);
          }
        }
      },
      config);
}

TEST(PartsArguments, AreRefusedByName) {
  over_comm(Kind::kInproc, 2, [&](echo_comm_t comm) {
    std::vector<float> whole(10), part(10);
    const auto refused = [&](echo_result_t result, const char* what) {
      EXPECT_EQ(result, ECHO_ERROR_ARGUMENT);
      EXPECT_NE(std::string(echo_last_error()).find(what), std::string::npos) << echo_last_error();
    };
    const std::size_t short_counts[] = {4, 5};
    const std::size_t counts[] = {4, 6};
    echo_call_t call ECHO_CALL_INITIALIZER;
    refused(echo_reduce_scatter(whole.data(), part.data(), 9, nullptr, ECHO_FLOAT32, comm, nullptr, nullptr),
            "9 elements do not fall into 2 equal parts");
    refused(echo_reduce_scatter(whole.data(), part.data(), 10, short_counts, ECHO_FLOAT32, comm, nullptr, nullptr),
            "counts add up to 9, but count is 10");
    call.row_length = 4;
    refused(echo_all_gather(part.data(), whole.data(), 10, counts, ECHO_FLOAT32, comm, &call),
            "row length 4 does not divide the 6 elements of rank 1");
    call.row_length = 0;
    call.algorithm = ECHO_ONE_SHOT;
    refused(echo_all_gather(part.data(), whole.data(), 10, nullptr, ECHO_FLOAT32, comm, &call), "algorithm");
    call.algorithm = ECHO_ALGORITHM_AUTO;
    call.op = ECHO_AVG;
    refused(echo_all_gather(part.data(), whole.data(), 10, nullptr, ECHO_FLOAT32, comm, &call), "ECHO_AVG");
    const std::size_t wrong = echo_comm_rank(comm) == 0 ? 5 : 0;  // the other rank's part
    refused(echo_reduce_scatter(whole.data(), whole.data() + wrong, 10, nullptr, ECHO_FLOAT32, comm, nullptr, nullptr),
            "at this rank's own part");
    refused(echo_broadcast(whole.data(), part.data(), 10, ECHO_FLOAT32, 2, comm), "root: 2; expected 0 to 1");
    refused(echo_broadcast(nullptr, nullptr, 10, ECHO_FLOAT32, 0, comm), "is NULL");
    EXPECT_EQ(echo_barrier(nullptr), ECHO_ERROR_ARGUMENT);
    EXPECT_EQ(echo_barrier(comm), ECHO_SUCCESS) << "nothing was sent: the communicator still works";
  });
}

// R8 across collectives: whoever does something else is named on every rank.
TEST(PartsMismatch, DifferentCollectivesAreAnErrorOnBothSides) {
  over_comm(Kind::kInproc, 2, [&](echo_comm_t comm) {
    std::vector<float> whole(128), part(64);
    const bool first = echo_comm_rank(comm) == 0;
    const echo_result_t result =
        first ? echo_reduce_scatter(whole.data(), part.data(), 128, nullptr, ECHO_FLOAT32, comm, nullptr, nullptr)
              : echo_all_gather(part.data(), whole.data(), 128, nullptr, ECHO_FLOAT32, comm, nullptr);
    EXPECT_EQ(result, ECHO_ERROR_MISMATCH);
    const std::string error = echo_last_error();
    EXPECT_NE(error.find("reduce-scatter"), std::string::npos) << error;
    EXPECT_NE(error.find("all-gather"), std::string::npos) << error;
  });
}

TEST(PartsMismatch, DifferentPartsOfOneCountAreAnError) {
  over_comm(Kind::kInproc, 2, [&](echo_comm_t comm) {
    const std::size_t counts[2][2] = {{64, 128}, {128, 64}};
    std::vector<float> whole(192), part(192);
    const auto rank = static_cast<std::size_t>(echo_comm_rank(comm));
    EXPECT_EQ(echo_all_gather(part.data(), whole.data(), 192, counts[rank], ECHO_FLOAT32, comm, nullptr),
              ECHO_ERROR_MISMATCH);
    EXPECT_NE(std::string(echo_last_error()).find("bytes of payload"), std::string::npos) << echo_last_error();
  });
}

}  // namespace
}  // namespace echo_comm::testing
