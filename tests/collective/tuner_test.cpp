// The table of a communicator: measured or given, the same on every rank, asked for afterwards.
#include <gmock/gmock.h>

#include <cstdlib>
#include <fstream>

#include "collective/table.hpp"
#include "tests/collective/support.hpp"

namespace echo_comm::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

echo_path_t last_path(echo_comm_t comm) {
  echo_path_t path ECHO_PATH_INITIALIZER;
  EXPECT_EQ(echo_comm_last_path(comm, &path), ECHO_SUCCESS) << echo_last_error();
  return path;
}

void reduce(echo_comm_t comm, std::size_t count, int bits = 0) {
  std::vector<float> data(count, 1.0F);
  echo_call_t call ECHO_CALL_INITIALIZER;
  call.bits = bits;
  ASSERT_EQ(echo_all_reduce(data.data(), data.data(), count, ECHO_FLOAT32, comm, nullptr, &call), ECHO_SUCCESS)
      << echo_last_error();
}

class Tuned : public OnRanks {};

INSTANTIATE_TEST_SUITE_P(Ranks, Tuned,
                         ::testing::ValuesIn(ranks_on({Kind::kInproc}, {1, 3}) + ranks_on({Kind::kShm}, {2, 4}) +
                                             ranks_on({Kind::kGloo}, {2})),
                         name_of_ranks);

// A2: the threshold is measured, agreed by all ranks and printed. It takes less than 3 s where nothing disturbs it.
TEST_P(Tuned, EveryRankHoldsTheSameMeasuredTable) {
  constexpr std::size_t kMost = 4096;
  const SharedArray<char> texts(kMost * 8);
  echo_config_t config ECHO_CONFIG_INITIALIZER;
  config.tune = ECHO_ON;
  over_comm(
      kind(), size(),
      [&](echo_comm_t comm) {
        const std::string table = echo_comm_table(comm);
        ASSERT_LT(table.size(), kMost);
        std::ranges::copy(table, texts.part(static_cast<std::size_t>(echo_comm_rank(comm)), kMost).begin());
        echo_stats_t stats ECHO_STATS_INITIALIZER;
        ASSERT_EQ(echo_comm_stats(comm, &stats), ECHO_SUCCESS);
        EXPECT_EQ(stats.calls + stats.control_calls, 0U) << "what the tuner did is not counted";
        reduce(comm, 100'000);
        EXPECT_NE(last_path(comm).reason, nullptr);
      },
      config);
  const std::string first = texts.data();
  for (int rank = 1; rank < size(); ++rank) {
    EXPECT_EQ(first, std::string(texts.part(static_cast<std::size_t>(rank), kMost).data())) << "rank " << rank;
  }
  const core::Table table = core::Table::parse(first);
  EXPECT_EQ(table.to_text(), first);
  for (const auto collective :
       {core::Collective::kAllReduce, core::Collective::kReduceScatter, core::Collective::kAllGather}) {
    EXPECT_NE(table.find(collective, INT64_MAX), nullptr) << first;
  }
}

TEST(TableOfACommunicator, IsThatOfRankZeroAndSaysWhyACallWentItsWay) {
  echo_config_t config ECHO_CONFIG_INITIALIZER;
  config.table = "all_reduce 4K forward; all_reduce 64K exact two_shot; all_reduce * coded segment=1K depth=2";
  over_comm(
      Kind::kShm, 2,
      [&](echo_comm_t comm) {
        echo_path_t none ECHO_PATH_INITIALIZER;
        EXPECT_EQ(echo_comm_last_path(comm, &none), ECHO_ERROR_STATE);
        EXPECT_THAT(echo_comm_table(comm), StartsWith("all_reduce 4K forward\nall_reduce 64K exact two_shot\n"));
        reduce(comm, 10);
        EXPECT_EQ(last_path(comm).kind, ECHO_PATH_EXACT);
        EXPECT_THAT(last_path(comm).reason, HasSubstr("no other engine"));
        reduce(comm, 30'000);
        EXPECT_EQ(last_path(comm).kind, ECHO_PATH_EXACT);
        EXPECT_EQ(last_path(comm).bits, ECHO_BITS_EXACT);
        EXPECT_EQ(last_path(comm).algorithm, ECHO_TWO_SHOT);
        reduce(comm, 40'000);
        EXPECT_EQ(last_path(comm).kind, ECHO_PATH_CODED);
        EXPECT_EQ(last_path(comm).bits, 4);
        EXPECT_EQ(last_path(comm).segment_values, 1024);
        EXPECT_EQ(last_path(comm).depth, 2);
        reduce(comm, 10, 4);
        EXPECT_EQ(last_path(comm).kind, ECHO_PATH_CODED) << "the caller gave the bits";
        echo_path_t asked ECHO_PATH_INITIALIZER;
        ASSERT_EQ(echo_comm_choose(comm, ECHO_ALL_REDUCE, 10, 0, nullptr, &asked), ECHO_SUCCESS);
        EXPECT_EQ(asked.kind, ECHO_PATH_FORWARD) << "for callers with another engine";
        echo_stats_t stats ECHO_STATS_INITIALIZER;
        ASSERT_EQ(echo_comm_stats(comm, &stats), ECHO_SUCCESS);
        EXPECT_EQ(stats.table_exact_calls, 2U);  // R9: visible
        EXPECT_EQ(stats.calls, 4U);
      },
      config);
}

TEST(TableOfACommunicator, OtherRanksFollowRankZeroAndAreTold) {
  const std::string name = unique_name();
  spawn_processes(2, [&](int rank, int) {
    static thread_local std::string warnings;
    echo_config_t config ECHO_CONFIG_INITIALIZER;
    config.table = rank == 0 ? "all_reduce * exact" : "all_reduce * coded";
    config.log = [](echo_log_level_t level, const char* line, void*) {
      if (level == ECHO_LOG_WARNING) warnings += line;
    };
    const std::string url = "shm://" + name + "?rank=" + std::to_string(rank) + "&size=2";
    echo_comm_t comm = nullptr;
    ASSERT_EQ(echo_comm_create(url.c_str(), &config, &comm), ECHO_SUCCESS) << echo_last_error();
    EXPECT_STREQ(echo_comm_table(comm), "all_reduce * exact\n");
    EXPECT_EQ(warnings.empty(), rank == 0) << warnings;
    reduce(comm, 1000);
    EXPECT_EQ(last_path(comm).kind, ECHO_PATH_EXACT);
    echo_comm_destroy(comm);
  });
}

TEST(TableOfACommunicator, ComesFromAFileOrTheEnvironmentAndSaysWhatIsWrongWithIt) {
  const std::string path = ::testing::TempDir() + unique_name();
  std::ofstream(path) << "all_reduce * exact # measured\n";
  echo_comm_t comm = nullptr;
  const auto created_with = [&](const std::string& table) {
    echo_config_t config ECHO_CONFIG_INITIALIZER;
    config.table = table.c_str();
    return echo_comm_create_all(1, &config, &comm);
  };
  ASSERT_EQ(created_with("@" + path), ECHO_SUCCESS) << echo_last_error();
  EXPECT_STREQ(echo_comm_table(comm), "all_reduce * exact\n");
  echo_comm_destroy(comm);
  EXPECT_EQ(created_with("@/nowhere/table"), ECHO_ERROR_ARGUMENT);
  EXPECT_THAT(echo_last_error(), HasSubstr("'/nowhere/table'"));
  EXPECT_EQ(created_with("all_reduce * quick"), ECHO_ERROR_ARGUMENT);
  EXPECT_THAT(echo_last_error(), HasSubstr("path 'quick'"));
  ASSERT_EQ(setenv("ECHO_TABLE", ("@" + path).c_str(), 1), 0);
  ASSERT_EQ(echo_comm_create_all(1, nullptr, &comm), ECHO_SUCCESS);
  EXPECT_STREQ(echo_comm_table(comm), "all_reduce * exact\n");
  echo_comm_destroy(comm);
  unsetenv("ECHO_TABLE");
  std::remove(path.c_str());
}

// Segment size and depth change when things are sent, never a bit of what comes out; residuals included.
TEST(Pipeline, NoSegmentSizeAndDepthMovesABit) {
  constexpr std::size_t kCount = 64 * 200 + 3;
  for (const Kind kind : {Kind::kInproc, Kind::kShm}) {
    for (const int size : {2, 3, 5}) {
      const std::vector<std::string> pipelines = {"segment=64 depth=1", "segment=64 depth=2", "segment=64 depth=3",
                                                  "segment=1K depth=3", "segment=16K depth=1"};
      const SharedArray<float> outs(2 * pipelines.size() * kCount);
      for (std::size_t variant = 0; variant < pipelines.size(); ++variant) {
        echo_config_t config ECHO_CONFIG_INITIALIZER;
        const std::string table = "all_reduce * coded " + pipelines[variant];
        config.table = table.c_str();
        over_comm(
            kind, size,
            [&](echo_comm_t comm) {
              echo_feedback_t feedback = nullptr;
              ASSERT_EQ(echo_feedback_create(comm, kCount, ECHO_STORE_INT8, &feedback), ECHO_SUCCESS);
              for (const echo_algorithm_t algorithm : {ECHO_ONE_SHOT, ECHO_TWO_SHOT}) {
                echo_call_t call ECHO_CALL_INITIALIZER;
                call.algorithm = algorithm;
                std::vector<float> data;
                for (uint32_t index = 0; index < 4; ++index) {
                  data = values_of(echo_comm_rank(comm), kCount, index);
                  ASSERT_EQ(echo_all_reduce(data.data(), data.data(), kCount, ECHO_FLOAT32, comm, feedback, &call),
                            ECHO_SUCCESS)
                      << echo_last_error();
                }
                if (echo_comm_rank(comm) == size - 1) {
                  std::ranges::copy(data, outs.part(2 * variant + (algorithm == ECHO_ONE_SHOT), kCount).begin());
                }
              }
              echo_feedback_destroy(feedback);
            },
            config);
      }
      for (std::size_t variant = 1; variant < pipelines.size(); ++variant) {
        ASSERT_EQ(std::memcmp(outs.data(), outs.part(2 * variant, kCount).data(), 2 * kCount * sizeof(float)), 0)
            << pipelines[variant] << " on " << size << " ranks";
      }
    }
  }
}

}  // namespace
}  // namespace echo_comm::testing
