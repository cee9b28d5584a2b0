// Started calls: several under way on one communicator end in order, with the bits of blocking ones; errors are the
// results of their waits; nothing is lost when things go away early.
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "tests/collective/support.hpp"

namespace echo_comm::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kCount = 64 * 300 + 5;

class Started : public OnRanks {};

INSTANTIATE_TEST_SUITE_P(Ranks, Started,
                         ::testing::ValuesIn(ranks_on({Kind::kInproc}, {1, 2, 3, 5}) + ranks_on({Kind::kShm}, {2, 4}) +
                                             ranks_on({Kind::kGloo}, {2, 3})),
                         name_of_ranks);

struct FeedbackGuard {
  explicit FeedbackGuard(echo_comm_t comm) {
    EXPECT_EQ(echo_feedback_create(comm, kCount, ECHO_STORE_FP32, &handle), ECHO_SUCCESS);
  }
  FeedbackGuard(const FeedbackGuard&) = delete;
  FeedbackGuard& operator=(const FeedbackGuard&) = delete;
  ~FeedbackGuard() { echo_feedback_destroy(handle); }
  echo_feedback_t handle = nullptr;
};

// A pass of ten calls with residuals, whose order shows in every bit: all started at once, or one after the other.
TEST_P(Started, SeveralInFlightGiveTheBitsOfBlockingCallsInOrder) {
  constexpr uint32_t kCalls = 10;
  over_comm(kind(), size(), [&](echo_comm_t comm) {
    std::vector<std::vector<float>> blocking, started;
    for (const bool wait_at_once : {true, false}) {
      const FeedbackGuard feedback(comm);
      std::vector<std::vector<float>>& outs = wait_at_once ? blocking : started;
      std::vector<std::vector<float>> ins;
      for (uint32_t index = 0; index < kCalls; ++index) {
        ins.push_back(values_of(echo_comm_rank(comm), kCount, index));
        outs.emplace_back(kCount);
      }
      std::vector<echo_request_t> requests(kCalls);
      for (uint32_t index = 0; index < kCalls; ++index) {
        if (wait_at_once) {
          ASSERT_EQ(echo_all_reduce(ins[index].data(), outs[index].data(), kCount, ECHO_FLOAT32, comm, feedback.handle,
                                    nullptr),
                    ECHO_SUCCESS);
        } else {
          ASSERT_EQ(echo_all_reduce_start(ins[index].data(), outs[index].data(), kCount, ECHO_FLOAT32, comm,
                                          feedback.handle, nullptr, &requests[index]),
                    ECHO_SUCCESS)
              << echo_last_error();
        }
      }
      if (wait_at_once) continue;
      int done = 0;
      while (done == 0) ASSERT_EQ(echo_test(requests.back(), &done), ECHO_SUCCESS);
      for (const echo_request_t request : requests) {
        ASSERT_EQ(echo_test(request, &done), ECHO_SUCCESS);
        EXPECT_EQ(done, 1) << "the last one is done, so all before are";
        ASSERT_EQ(echo_wait(request), ECHO_SUCCESS) << echo_last_error();
      }
    }
    EXPECT_EQ(blocking, started);
  });
}

TEST_P(Started, ABlockingCallWaitsForThoseBeforeIt) {
  over_comm(kind(), size(), [&](echo_comm_t comm) {
    std::vector<float> data(kCount, 1.0F);
    echo_call_t call ECHO_CALL_INITIALIZER;
    call.bits = ECHO_BITS_EXACT;
    echo_request_t request = nullptr;
    ASSERT_EQ(echo_all_reduce_start(data.data(), data.data(), kCount, ECHO_FLOAT32, comm, nullptr, &call, &request),
              ECHO_SUCCESS);
    ASSERT_EQ(echo_all_reduce(data.data(), data.data(), kCount, ECHO_FLOAT32, comm, nullptr, &call), ECHO_SUCCESS);
    EXPECT_EQ(data[kCount - 1], static_cast<float>(size() * size()));
    EXPECT_EQ(echo_wait(request), ECHO_SUCCESS);
  });
}

TEST_P(Started, PartsToo) {
  over_comm(kind(), size(), [&](echo_comm_t comm) {
    const std::size_t count = 64 * static_cast<std::size_t>(size());
    std::vector<float> whole(count, 1.0F), part(64), gathered(count);
    echo_call_t call ECHO_CALL_INITIALIZER;
    call.bits = ECHO_BITS_EXACT;
    echo_request_t scatter = nullptr;
    echo_request_t gather = nullptr;
    ASSERT_EQ(echo_reduce_scatter_start(whole.data(), part.data(), count, nullptr, ECHO_FLOAT32, comm, nullptr, &call,
                                        &scatter),
              ECHO_SUCCESS);
    ASSERT_EQ(echo_all_gather_start(part.data(), gathered.data(), count, nullptr, ECHO_FLOAT32, comm, &call, &gather),
              ECHO_SUCCESS);
    EXPECT_EQ(echo_wait(gather), ECHO_SUCCESS) << echo_last_error();
    EXPECT_EQ(echo_wait(scatter), ECHO_SUCCESS);
    EXPECT_EQ(gathered, std::vector<float>(count, static_cast<float>(size())));
  });
}

TEST(StartedErrors, WrongArgumentsAreRefusedAtOnce) {
  over_comm(Kind::kInproc, 2, [&](echo_comm_t comm) {
    std::vector<float> data(64);
    auto* untouched = reinterpret_cast<echo_request_t>(0x10);
    EXPECT_EQ(echo_all_reduce_start(nullptr, data.data(), 64, ECHO_FLOAT32, comm, nullptr, nullptr, &untouched),
              ECHO_ERROR_ARGUMENT);
    EXPECT_EQ(untouched, nullptr);
    EXPECT_EQ(echo_all_reduce_start(data.data(), data.data(), 64, ECHO_FLOAT32, comm, nullptr, nullptr, nullptr),
              ECHO_ERROR_ARGUMENT);
    EXPECT_EQ(echo_wait(nullptr), ECHO_ERROR_ARGUMENT);
    int done = 0;
    EXPECT_EQ(echo_test(nullptr, &done), ECHO_ERROR_ARGUMENT);
    EXPECT_EQ(echo_barrier(comm), ECHO_SUCCESS);
  });
}

TEST(StartedErrors, TheFeedbackOfACallUnderWayCannotBeReset) {
  const auto comms = [] {
    std::vector<echo_comm_t> all(2);
    EXPECT_EQ(echo_comm_create_all(2, nullptr, all.data()), ECHO_SUCCESS);
    return all;
  }();
  std::vector<float> data(kCount);
  {
    const FeedbackGuard feedback(comms[0]);
    echo_request_t request = nullptr;
    ASSERT_EQ(echo_all_reduce_start(data.data(), data.data(), kCount, ECHO_FLOAT32, comms[0], feedback.handle, nullptr,
                                    &request),
              ECHO_SUCCESS);  // rank 1 makes no call: it stays under way
    EXPECT_EQ(echo_feedback_reset(feedback.handle), ECHO_ERROR_STATE);
    EXPECT_THAT(echo_last_error(), HasSubstr("a started call still uses it"));
    EXPECT_EQ(echo_comm_abort(comms[0], "enough"), ECHO_SUCCESS);
    EXPECT_EQ(echo_wait(request), ECHO_ERROR_ABORTED);
    EXPECT_THAT(echo_last_error(), HasSubstr("enough"));
    EXPECT_EQ(echo_feedback_reset(feedback.handle), ECHO_SUCCESS);
  }
  for (const echo_comm_t comm : comms) echo_comm_destroy(comm);
}

// D8: the first error surfaces, in the call it belongs to; those after it fail too, none hangs.
TEST(StartedErrors, AMismatchIsTheResultOfItsOwnCall) {
  over_comm(Kind::kInproc, 2, [&](echo_comm_t comm) {
    std::vector<std::vector<float>> data(3, std::vector<float>(kCount));
    echo_request_t requests[3];
    for (std::size_t index = 0; index < 3; ++index) {
      const std::size_t count = index == 1 && echo_comm_rank(comm) == 1 ? kCount - 1 : kCount;
      ASSERT_EQ(echo_all_reduce_start(data[index].data(), data[index].data(), count, ECHO_FLOAT32, comm, nullptr,
                                      nullptr, &requests[index]),
                ECHO_SUCCESS);
    }
    const echo_result_t first = echo_wait(requests[0]);
    EXPECT_TRUE(first == ECHO_SUCCESS || first == ECHO_ERROR_MISMATCH) << "the other rank may have failed before";
    EXPECT_EQ(echo_wait(requests[1]), ECHO_ERROR_MISMATCH);
    EXPECT_THAT(echo_last_error(), HasSubstr(std::to_string(kCount - 1)));
    EXPECT_EQ(echo_wait(requests[2]), ECHO_ERROR_MISMATCH);
  });
}

TEST(StartedErrors, DestroyingTheCommunicatorEndsWhatIsUnderWay) {
  std::vector<echo_comm_t> comms(2);
  ASSERT_EQ(echo_comm_create_all(2, nullptr, comms.data()), ECHO_SUCCESS);
  std::vector<float> data(kCount);
  echo_request_t requests[2];
  for (echo_request_t& request : requests) {
    ASSERT_EQ(
        echo_all_reduce_start(data.data(), data.data(), kCount, ECHO_FLOAT32, comms[0], nullptr, nullptr, &request),
        ECHO_SUCCESS);
  }
  const auto begin = std::chrono::steady_clock::now();
  echo_comm_destroy(comms[0]);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  for (const echo_request_t request : requests) EXPECT_EQ(echo_wait(request), ECHO_ERROR_ABORTED);
  EXPECT_EQ(echo_barrier(comms[1]), ECHO_ERROR_ABORTED);
  echo_comm_destroy(comms[1]);
}

TEST(StartedErrors, AForkedChildIsRefusedAndCanDestroyItsCopy) {
  if (kThreadSanitizer) GTEST_SKIP() << "the thread sanitizer does not fork";
  echo_comm_t comm = nullptr;
  ASSERT_EQ(echo_comm_create_all(1, nullptr, &comm), ECHO_SUCCESS);
  std::vector<float> data(64, 1.0F);
  echo_request_t request = nullptr;
  ASSERT_EQ(echo_all_reduce_start(data.data(), data.data(), 64, ECHO_FLOAT32, comm, nullptr, nullptr, &request),
            ECHO_SUCCESS);
  ASSERT_EQ(echo_wait(request), ECHO_SUCCESS);
  const pid_t child = fork();
  if (child == 0) {
    const echo_result_t result =
        echo_all_reduce_start(data.data(), data.data(), 64, ECHO_FLOAT32, comm, nullptr, nullptr, &request);
    echo_comm_destroy(comm);
    _exit(result == ECHO_ERROR_STATE ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(echo_barrier(comm), ECHO_SUCCESS);
  echo_comm_destroy(comm);
}

}  // namespace
}  // namespace echo_comm::testing
