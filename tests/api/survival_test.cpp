// A rank that is killed: the others get an error in time, nothing hangs, nothing is left behind (D7, E1).
#include <gmock/gmock.h>
#include <signal.h>

#include <filesystem>
#include <set>

#include "tests/collective/support.hpp"

namespace echo_comm::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kRanks = 3;
constexpr int kRepeats = 50;

std::set<std::string> shared_memory_files() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) names.insert(entry.path().filename());
  return names;
}

// Cells: [rank] calls made, [16 + rank] time of the error, [32] longest call in ns.
struct Cells {
  SharedCells cells;
  std::atomic<int64_t>& calls(int rank) { return cells[rank]; }
  std::atomic<int64_t>& failed_at(int rank) { return cells[16 + rank]; }
  std::atomic<int64_t>& longest_call() { return cells[32]; }
};

void call_until_an_error(const std::string& name, int rank, std::size_t count, Cells& cells) {
  const std::string url = "shm://" + name + "?rank=" + std::to_string(rank) + "&size=3";
  echo_comm_t comm = nullptr;
  ASSERT_EQ(echo_comm_create(url.c_str(), nullptr, &comm), ECHO_SUCCESS) << echo_last_error();
  echo_feedback_t feedback = nullptr;
  ASSERT_EQ(echo_feedback_create(comm, count, ECHO_STORE_FP32, &feedback), ECHO_SUCCESS);
  std::vector<float> data(count, 1.0F);
  echo_result_t result = ECHO_SUCCESS;
  while (result == ECHO_SUCCESS) {
    const int64_t before = now_ns();
    result = echo_all_reduce(data.data(), data.data(), count, ECHO_FLOAT32, comm, feedback, nullptr);
    const int64_t now = now_ns();
    if (result == ECHO_SUCCESS) {
      cells.calls(rank)++;
      cells.longest_call() = std::max(cells.longest_call().load(), now - before);
    } else {
      cells.failed_at(rank) = now;
    }
  }
  EXPECT_EQ(result, ECHO_ERROR_PEER) << echo_last_error();
  EXPECT_THAT(echo_last_error(), HasSubstr("rank 1"));
  echo_feedback_destroy(feedback);
  echo_comm_destroy(comm);
}

TEST(Survival, SurvivorsGetAnErrorWithinTwoSecondsWhenAPeerIsKilledMidCall) {
  const std::set<std::string> files = shared_memory_files();
  const int descriptors = open_descriptors();
  int64_t slowest = 0;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    Cells cells;
    const std::string name = unique_name();
    // Small and large tensors: one-shot and two-shot, one segment and many.
    const std::size_t count = repeat % 3 == 0 ? 500 : repeat % 3 == 1 ? 40'000 : 1'500'000;
    ProcessGroup ranks(kRanks, [&](int rank, int) { call_until_an_error(name, rank, count, cells); });
    const int64_t enough = 1 + repeat % 5;
    ASSERT_TRUE(eventually([&] { return cells.calls(1) >= enough; })) << "repeat " << repeat;
    const int64_t killed_at = now_ns();
    ranks.kill(1, SIGKILL);
    const std::vector<RankResult> results = ranks.wait();
    for (const int survivor : {0, 2}) {
      const RankResult& result = results[static_cast<std::size_t>(survivor)];
      ASSERT_TRUE(result.passed) << "repeat " << repeat << ", rank " << survivor << ": " << result.text;
      const int64_t took = cells.failed_at(survivor) - killed_at;
      ASSERT_LT(took, 2'000'000'000 + cells.longest_call()) << "repeat " << repeat << ", rank " << survivor;
      slowest = std::max(slowest, took);
    }
  }
  std::cout << kRepeats << " kills, slowest error after " << slowest / 1'000'000 << " ms\n";
  EXPECT_EQ(shared_memory_files(), files);
  EXPECT_EQ(open_descriptors(), descriptors);
}

// After an error the same ranks can make a new communicator without a restart (D7).
TEST(Survival, ANewCommunicatorWorksAfterAFailedOne) {
  const std::string first = unique_name();
  const std::string second = unique_name();
  SharedCells cells;
  ProcessGroup ranks(kRanks, [&](int rank, int) {
    const auto create = [&](const std::string& name, int own, int size) {
      echo_comm_t comm = nullptr;
      const std::string url = "shm://" + name + "?rank=" + std::to_string(own) + "&size=" + std::to_string(size);
      EXPECT_EQ(echo_comm_create(url.c_str(), nullptr, &comm), ECHO_SUCCESS) << echo_last_error();
      return comm;
    };
    echo_comm_t comm = create(first, rank, 3);
    std::vector<float> data(10'000, 1.0F);
    echo_result_t result = ECHO_SUCCESS;
    while (result == ECHO_SUCCESS) {
      result = echo_all_reduce(data.data(), data.data(), data.size(), ECHO_FLOAT32, comm, nullptr, nullptr);
      cells[rank]++;
    }
    echo_comm_destroy(comm);
    comm = create(second, rank == 0 ? 0 : 1, 2);
    std::fill(data.begin(), data.end(), 2.0F);
    EXPECT_EQ(echo_all_reduce(data.data(), data.data(), data.size(), ECHO_FLOAT32, comm, nullptr, nullptr),
              ECHO_SUCCESS)
        << echo_last_error();
    EXPECT_NEAR(data[77], 4.0F, 0.5F);
    echo_comm_destroy(comm);
  });
  ASSERT_TRUE(eventually([&] { return cells[1] > 3; }));
  ranks.kill(1, SIGKILL);
  const std::vector<RankResult> results = ranks.wait();
  for (const int survivor : {0, 2}) {
    EXPECT_TRUE(results[static_cast<std::size_t>(survivor)].passed) << results[static_cast<std::size_t>(survivor)].text;
  }
}

}  // namespace
}  // namespace echo_comm::testing
