// Creation, settings, counters and texts of the public interface.
#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "tests/collective/support.hpp"

extern "C" int echo_c_interface_test(void);

namespace echo_comm::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Interface, WorksFromC) { EXPECT_EQ(echo_c_interface_test(), 0); }

TEST(Interface, KnowsItsVersionAndResults) {
  EXPECT_EQ(echo_version(), ECHO_VERSION);
  EXPECT_STREQ(echo_result_string(ECHO_SUCCESS), "success");
  EXPECT_STREQ(echo_result_string(ECHO_ERROR_INTERNAL), "internal");
  EXPECT_STREQ(echo_result_string(static_cast<echo_result_t>(77)), "unknown");
  EXPECT_STREQ(echo_result_string(static_cast<echo_result_t>(-1)), "unknown");
}

TEST(Interface, HandlesNull) {
  EXPECT_EQ(echo_comm_rank(nullptr), -1);
  EXPECT_EQ(echo_comm_size(nullptr), -1);
  EXPECT_STREQ(echo_comm_transport(nullptr), "");
  EXPECT_EQ(echo_feedback_bytes(nullptr), 0U);
  echo_comm_destroy(nullptr);
  echo_feedback_destroy(nullptr);
  EXPECT_EQ(echo_feedback_reset(nullptr), ECHO_ERROR_ARGUMENT);
  EXPECT_EQ(echo_feedback_save(nullptr, nullptr, nullptr), ECHO_ERROR_ARGUMENT);
  EXPECT_EQ(echo_feedback_load(nullptr, nullptr, 0), ECHO_ERROR_ARGUMENT);
  EXPECT_EQ(echo_comm_abort(nullptr, "x"), ECHO_ERROR_ARGUMENT);
  EXPECT_EQ(echo_comm_create(nullptr, nullptr, nullptr), ECHO_ERROR_ARGUMENT);
  EXPECT_EQ(echo_comm_stats(nullptr, nullptr), ECHO_ERROR_ARGUMENT);
}

TEST(Interface, RefusesBadUrlsAndSaysWhatIsExpected) {
  const auto refusal = [](const char* url) {
    echo_comm_t comm = nullptr;
    EXPECT_EQ(echo_comm_create(url, nullptr, &comm), ECHO_ERROR_ARGUMENT) << url;
    EXPECT_EQ(comm, nullptr);
    return std::string(echo_last_error());
  };
  EXPECT_THAT(refusal(""), HasSubstr("expected shm://NAME?rank=R&size=W"));
  EXPECT_THAT(refusal("tcp://x?rank=0&size=1"), HasSubstr("unknown transport"));
  EXPECT_THAT(refusal("shm://?rank=0&size=1"), HasSubstr("name"));
  EXPECT_THAT(refusal("shm://a/b?rank=0&size=1"), HasSubstr("name"));
  EXPECT_THAT(refusal(("shm://" + std::string(65, 'a') + "?rank=0&size=1").c_str()), HasSubstr("name"));
  EXPECT_THAT(refusal("shm://x"), HasSubstr("rank is missing"));
  EXPECT_THAT(refusal("shm://x?rank=0"), HasSubstr("size is missing"));
  EXPECT_THAT(refusal("shm://x?rank=0&size=two"), HasSubstr("size='two' is not a whole number"));
  EXPECT_THAT(refusal("shm://x?rank=0&size=1&rank=0"), HasSubstr("rank is given twice"));
  EXPECT_THAT(refusal("shm://x?rank=0&size=1&colour=red"), HasSubstr("unknown option 'colour'"));
  EXPECT_THAT(refusal("shm://x?rank=3&size=3"), HasSubstr("0 to size - 1"));
  EXPECT_THAT(refusal("shm://x?rank=-1&size=3"), HasSubstr("0 to size - 1"));
  EXPECT_THAT(refusal("shm://x?rank=0&size=0"), HasSubstr("1 to 64"));
  EXPECT_THAT(refusal("shm://x?rank=0&size=65"), HasSubstr("1 to 64"));
  EXPECT_THAT(refusal("shm://x?rank=0&size=99999999999"), HasSubstr("not a whole number"));
}

TEST(Interface, RefusesBadSettings) {
  echo_comm_t comm = nullptr;
  echo_config_t config ECHO_CONFIG_INITIALIZER;
  config.timeout_ms = -5;
  EXPECT_EQ(echo_comm_create_all(1, &config, &comm), ECHO_ERROR_ARGUMENT);
  EXPECT_THAT(echo_last_error(), HasSubstr("timeout_ms: -5"));
  config.timeout_ms = 0;
  config.slot_bytes = 100;
  EXPECT_EQ(echo_comm_create_all(1, &config, &comm), ECHO_ERROR_ARGUMENT);
  EXPECT_THAT(echo_last_error(), HasSubstr("slot_bytes: 100"));
  config.slot_bytes = 0;
  for (const int threads : {-1, 257}) {
    config.threads = threads;
    EXPECT_EQ(echo_comm_create_all(1, &config, &comm), ECHO_ERROR_ARGUMENT);
    EXPECT_THAT(echo_last_error(), HasSubstr("threads: " + std::to_string(threads)));
  }
  config.threads = 0;
  config.size = 3;
  EXPECT_EQ(echo_comm_create_all(1, &config, &comm), ECHO_ERROR_ARGUMENT);
  EXPECT_THAT(echo_last_error(), HasSubstr("size is 3"));
  EXPECT_EQ(echo_comm_create_all(0, nullptr, &comm), ECHO_ERROR_ARGUMENT);
  EXPECT_EQ(echo_comm_create_all(65, nullptr, &comm), ECHO_ERROR_ARGUMENT);
}

TEST(Interface, RefusesBadEnvironmentVariables) {
  spawn_processes(1, [](int, int) {
    setenv("ECHO_TIMEOUT_MS", "soon", 1);
    echo_comm_t comm = nullptr;
    EXPECT_EQ(echo_comm_create_all(1, nullptr, &comm), ECHO_ERROR_ARGUMENT);
    EXPECT_THAT(echo_last_error(), HasSubstr("ECHO_TIMEOUT_MS=soon"));
    setenv("ECHO_TIMEOUT_MS", "100", 1);
    EXPECT_EQ(echo_comm_create("shm://nobody-comes?rank=1&size=2", nullptr, &comm), ECHO_ERROR_TIMEOUT);
  });
}

// A caller compiled against an older, shorter struct.
TEST(Interface, AcceptsOlderStructs) {
  echo_comm_t comm = nullptr;
  ASSERT_EQ(echo_comm_create_all(1, nullptr, &comm), ECHO_SUCCESS);
  echo_call_t call ECHO_CALL_INITIALIZER;
  call.size = offsetof(echo_call_t, row_length);
  call.row_length = 7;  // not part of that struct: must not be read
  float x[10] = {};
  EXPECT_EQ(echo_all_reduce(x, x, 10, ECHO_FLOAT32, comm, nullptr, &call), ECHO_SUCCESS) << echo_last_error();
  echo_stats_t stats ECHO_STATS_INITIALIZER;
  stats.size = offsetof(echo_stats_t, coded_calls);
  stats.shm_bytes = 12345;
  ASSERT_EQ(echo_comm_stats(comm, &stats), ECHO_SUCCESS);
  EXPECT_EQ(stats.calls, 1U);
  EXPECT_EQ(stats.shm_bytes, 12345U) << "beyond the caller's struct";
  echo_comm_destroy(comm);
}

// I8: one line per communicator, through the callback.
TEST(Interface, LogsOneLineAtCreation) {
  std::vector<std::string> lines;
  echo_config_t config ECHO_CONFIG_INITIALIZER;
  config.log = [](echo_log_level_t, const char* line, void* context) {
    static_cast<std::vector<std::string>*>(context)->emplace_back(line);
  };
  config.log_context = &lines;
  echo_comm_t comm = nullptr;
  ASSERT_EQ(echo_comm_create_all(1, &config, &comm), ECHO_SUCCESS);
  float x[10] = {};
  for (int i = 0; i < 5; ++i) ASSERT_EQ(echo_all_reduce(x, x, 10, ECHO_FLOAT32, comm, nullptr, nullptr), ECHO_SUCCESS);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_THAT(lines[0], AllOf(HasSubstr("version"), HasSubstr("transport inproc"), HasSubstr("rank 0 of 1")));
  echo_comm_destroy(comm);
}

TEST(Interface, AbortReachesEveryRank) {
  SharedCells cells;
  over_comm(Kind::kShm, 3, [&](echo_comm_t comm) {
    std::vector<float> data(100'000, 1.0F);
    std::thread killer;
    if (echo_comm_rank(comm) == 0) {
      killer = std::thread([&] {
        eventually([&] { return cells[1] > 0 && cells[2] > 0; });
        EXPECT_EQ(echo_comm_abort(comm, "operator said so"), ECHO_SUCCESS);
      });
    }
    echo_result_t result = ECHO_SUCCESS;
    for (int call = 0; call < 1'000'000 && result == ECHO_SUCCESS; ++call) {
      cells[echo_comm_rank(comm)] = call + 1;
      result = echo_all_reduce(data.data(), data.data(), data.size(), ECHO_FLOAT32, comm, nullptr, nullptr);
    }
    EXPECT_EQ(result, ECHO_ERROR_ABORTED) << echo_last_error();
    EXPECT_THAT(echo_last_error(), HasSubstr("operator said so"));
    if (killer.joinable()) killer.join();
  });
}

TEST(Interface, ChunkAndGroupFunctionsCheckTheirArguments) {
  EXPECT_EQ(echo_groups(65, 0), 2);
  EXPECT_EQ(echo_groups(100, 33), -1);
  int64_t begin = 0;
  int64_t end = 0;
  EXPECT_EQ(echo_chunk(10, 3, 2, &begin, &end), ECHO_SUCCESS);
  EXPECT_EQ(begin, 6);
  EXPECT_EQ(end, 10);
  EXPECT_EQ(echo_chunk(10, 3, 3, &begin, &end), ECHO_ERROR_ARGUMENT);
  echo_algorithm_t algorithm = ECHO_ALGORITHM_AUTO;
  EXPECT_EQ(echo_select(576, 0, 0, 3, 0, &algorithm), ECHO_SUCCESS);
  EXPECT_EQ(algorithm, ECHO_ONE_SHOT);
  EXPECT_EQ(echo_select(576, 0, 0, 3, 1, &algorithm), ECHO_SUCCESS);
  EXPECT_EQ(algorithm, ECHO_TWO_SHOT);
  EXPECT_EQ(echo_select(576, 0, 7, 3, 0, &algorithm), ECHO_ERROR_ARGUMENT);
  EXPECT_EQ(echo_select(576, 0, 0, 65, 0, &algorithm), ECHO_ERROR_ARGUMENT);
  echo_range_t range ECHO_RANGE_INITIALIZER;
  range.count = 64;
  range.group_end = 2;
  size_t bytes = 0;
  EXPECT_EQ(echo_encoded_size(&range, &bytes), ECHO_ERROR_ARGUMENT);
  EXPECT_THAT(echo_last_error(), HasSubstr("groups [0, 2) of a tensor of 1 groups"));
}

TEST(Interface, ResidualFunctionsCheckTheirArguments) {
  EXPECT_EQ(echo_residual_bytes(10, ECHO_STORE_AUTO), 10 * 256);
  EXPECT_EQ(echo_residual_bytes(10, ECHO_STORE_FP32), 10 * 256);
  EXPECT_EQ(echo_residual_bytes(10, ECHO_STORE_INT8), 10 * 66);
  EXPECT_EQ(echo_residual_bytes(10, ECHO_STORE_INT16), 10 * 130);
  EXPECT_EQ(echo_residual_bytes(int64_t{1} << 40, ECHO_STORE_INT8), 66 * (int64_t{1} << 40));
  EXPECT_EQ(echo_residual_bytes(-1, ECHO_STORE_INT8), -1);
  EXPECT_EQ(echo_residual_bytes(10, static_cast<echo_store_t>(4)), -1);
  EXPECT_THAT(echo_last_error(), HasSubstr("store: 4"));
  echo_comm_t comm = nullptr;
  ASSERT_EQ(echo_comm_create_all(1, nullptr, &comm), ECHO_SUCCESS);
  echo_feedback_t feedback = nullptr;
  EXPECT_EQ(echo_feedback_create(comm, 64, static_cast<echo_store_t>(9), &feedback), ECHO_ERROR_ARGUMENT);
  EXPECT_THAT(echo_last_error(), HasSubstr("store: 9"));
  EXPECT_EQ(feedback, nullptr);
  echo_comm_destroy(comm);
}

// Everything is checked before memory is touched.
TEST(Interface, CodecCallsCheckCodecPartAndResiduals) {
  std::vector<float> in(640, 1.0F);
  std::vector<std::byte> encoded(10 * 34);
  echo_range_t range ECHO_RANGE_INITIALIZER;
  range.count = in.size();
  range.group_begin = 2;
  range.group_end = 8;
  const auto refusal = [&](const echo_residuals_t* residuals) -> std::string {
    const echo_result_t result = echo_encode(&range, in.data(), residuals, encoded.data(), nullptr);
    return result == ECHO_ERROR_ARGUMENT ? echo_last_error() : echo_result_string(result);
  };
  EXPECT_EQ(refusal(nullptr), "success");
  range.codec = "abacus";
  EXPECT_THAT(refusal(nullptr), AllOf(HasSubstr("codec abacus"), HasSubstr("reference")));
  range.codec = "reference";
  EXPECT_EQ(refusal(nullptr), "success");
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{1, 4}, {4, 9}, {5, 4}, {-1, 3}}) {
    range.part_begin = begin;
    range.part_end = end;
    EXPECT_THAT(refusal(nullptr), HasSubstr("part [" + std::to_string(begin) + ", " + std::to_string(end) + ")"));
  }
  range.part_begin = 3;
  range.part_end = 5;
  EXPECT_EQ(refusal(nullptr), "success");
  std::vector<std::byte> memory(10 * 256 + 8);
  echo_residuals_t residuals ECHO_RESIDUALS_INITIALIZER;
  residuals.sender = memory.data() + 1;
  for (const echo_store_t store : {ECHO_STORE_FP32, ECHO_STORE_INT8, ECHO_STORE_INT16}) {
    residuals.store = store;
    EXPECT_THAT(refusal(&residuals), HasSubstr("sender is not"));
  }
  residuals.sender = memory.data();
  residuals.store = static_cast<echo_store_t>(7);
  EXPECT_THAT(refusal(&residuals), HasSubstr("store: 7"));
  residuals.size = 1;
  EXPECT_THAT(refusal(&residuals), HasSubstr("size is 1"));
  const void* part = encoded.data();
  EXPECT_EQ(echo_decode(&range, &part, 1, 1, 2, nullptr, in.data(), nullptr), ECHO_ERROR_ARGUMENT);
  EXPECT_THAT(echo_last_error(), HasSubstr("add: 2"));
}

// Ranks may even have different numbers of threads: the bytes are the same.
TEST(Interface, AnyNumberOfThreadsGivesTheSameSums) {
  constexpr std::size_t kCount = 600'001;
  std::vector<std::vector<float>> results;
  for (const int most : {1, 2, 4}) {
    std::vector<float> sums;
    echo_comm_t comms[3] = {};
    echo_config_t config ECHO_CONFIG_INITIALIZER;
    config.threads = most;
    ASSERT_EQ(echo_comm_create_all(3, &config, comms), ECHO_SUCCESS);
    spawn_threads(3, [&](int rank, int) {
      std::vector<float> x(kCount);
      for (std::size_t i = 0; i < kCount; ++i)
        x[i] = static_cast<float>((i * 7919 + static_cast<std::size_t>(rank)) % 1009);
      echo_feedback_t feedback = nullptr;
      ASSERT_EQ(echo_feedback_create(comms[rank], kCount, ECHO_STORE_AUTO, &feedback), ECHO_SUCCESS);
      for (int call = 0; call < 3; ++call) {
        ASSERT_EQ(echo_all_reduce(x.data(), x.data(), kCount, ECHO_FLOAT32, comms[rank], feedback, nullptr),
                  ECHO_SUCCESS);
      }
      echo_stats_t stats ECHO_STATS_INITIALIZER;
      EXPECT_EQ(echo_comm_stats(comms[rank], &stats), ECHO_SUCCESS);
      EXPECT_EQ(stats.threads, static_cast<uint64_t>(most));
      if (rank == 0) sums = x;
      echo_feedback_destroy(feedback);
    });
    for (echo_comm_t comm : comms) echo_comm_destroy(comm);
    results.push_back(sums);
  }
  EXPECT_TRUE(results[0] == results[1]);
  EXPECT_TRUE(results[0] == results[2]);
}

// F-row of fork: a child must not use its parent's communicator; the parent's goes on.
TEST(Interface, AForkedChildIsRefused) {
  spawn_processes(1, [](int, int) {
    const std::string url = "shm://" + unique_name() + "?rank=0&size=1";
    echo_comm_t single = nullptr;
    ASSERT_EQ(echo_comm_create(url.c_str(), nullptr, &single), ECHO_SUCCESS) << echo_last_error();
    echo_comm_destroy(single);
  });
  over_comm(Kind::kShm, 2, [&](echo_comm_t comm) {
    std::vector<float> data(1000, 1.0F);
    ASSERT_EQ(echo_all_reduce(data.data(), data.data(), 1000, ECHO_FLOAT32, comm, nullptr, nullptr), ECHO_SUCCESS);
    if (echo_comm_rank(comm) == 0) {
      ProcessGroup child(1, [&](int, int) {
        EXPECT_EQ(echo_all_reduce(data.data(), data.data(), 1000, ECHO_FLOAT32, comm, nullptr, nullptr),
                  ECHO_ERROR_STATE);
        EXPECT_THAT(echo_last_error(), HasSubstr("fork"));
      });
      for (const RankResult& result : child.wait()) EXPECT_TRUE(result.passed) << result.text;
    }
    EXPECT_EQ(echo_all_reduce(data.data(), data.data(), 1000, ECHO_FLOAT32, comm, nullptr, nullptr), ECHO_SUCCESS)
        << echo_last_error();
  });
}

}  // namespace
}  // namespace echo_comm::testing
