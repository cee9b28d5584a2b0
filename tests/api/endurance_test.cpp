// What a long life brings: many communicators, many calls of all kinds, ranks that are slow, stopped or out of step.
#include <gmock/gmock.h>
#include <signal.h>

#include <thread>

#include "tests/collective/support.hpp"

namespace echo_comm::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

class Endurance : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    const std::string reason = cannot_test(GetParam());
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
};

INSTANTIATE_TEST_SUITE_P(Over, Endurance, ::testing::Values(Kind::kInproc, Kind::kShm, Kind::kGloo),
                         [](const auto& info) { return std::string(name_of(info.param)); });

// D4, D5: 50,000 calls of alternating kinds and sizes, known whole numbers, ranks late at random.
TEST_P(Endurance, FiftyThousandCallsOfAlternatingSizes) {
  const bool slow = kThreadSanitizer || kAddressSanitizer || GetParam() == Kind::kGloo;
  const uint32_t calls = slow ? 5'000 : 50'000;
  over_comm(GetParam(), 2, [&](echo_comm_t comm) {
    const auto rank = static_cast<std::size_t>(echo_comm_rank(comm));
    echo_call_t call ECHO_CALL_INITIALIZER;
    call.bits = ECHO_BITS_EXACT;
    constexpr std::size_t kCounts[] = {2, 4096, 64, 0, 130, 20'000, 8, 640};
    std::vector<float> data(20'000), part(40'000);
    Random random(rank);
    for (uint32_t index = 0; index < calls; ++index) {
      const std::size_t count = kCounts[index % std::size(kCounts)];
      const auto first = static_cast<float>(index % 1000);
      if (count > 0) data[count - 1] = data[0] = first + static_cast<float>(rank);
      if (random.below(5000) == 0) std::this_thread::sleep_for(10ms);
      const float sum = 2 * first + 1;
      switch (index % 7) {
        default:
          ASSERT_EQ(echo_all_reduce(data.data(), data.data(), count, ECHO_FLOAT32, comm, nullptr, &call), ECHO_SUCCESS)
              << "call " << index << ": " << echo_last_error();
          if (count > 0) {
            ASSERT_EQ(data[count - 1], sum) << "call " << index;
          }
          break;
        case 5:
          ASSERT_EQ(echo_reduce_scatter(data.data(), part.data(), count, nullptr, ECHO_FLOAT32, comm, nullptr, &call),
                    ECHO_SUCCESS)
              << "call " << index << ": " << echo_last_error();
          if (count > 0) {
            ASSERT_EQ(rank == 0 ? part[0] : part[count / 2 - 1], sum) << "call " << index;
          }
          break;
        case 6:
          ASSERT_EQ(echo_all_gather(data.data(), part.data(), 2 * count, nullptr, ECHO_FLOAT32, comm, &call),
                    ECHO_SUCCESS)
              << "call " << index << ": " << echo_last_error();
          if (count > 0) {
            ASSERT_EQ(part[2 * count - 1], first + 1) << "call " << index;
          }
      }
    }
  });
}

// E1: nothing is left of a communicator: no descriptor, no memory, no thread.
TEST_P(Endurance, AThousandCommunicatorsLeaveNothing) {
  const int times = GetParam() == Kind::kGloo ? 50 : 1000;
  const TemporaryDirectory directory;
  const std::string name = unique_name();
  const auto once = [&](int rank, int round) {
    std::vector<echo_comm_t> comms(1);
    if (GetParam() == Kind::kInproc) {
      ASSERT_EQ(echo_comm_create_all(1, nullptr, comms.data()), ECHO_SUCCESS) << echo_last_error();
    } else {
      const std::string base = GetParam() == Kind::kShm ? "shm://" + name + std::to_string(round) + "?"
                                                        : "gloo+file://" + directory.path() + "?iface=lo&";
      const std::string url = base + "size=2&rank=" + std::to_string(rank);
      ASSERT_EQ(echo_comm_create(url.c_str(), nullptr, comms.data()), ECHO_SUCCESS)
          << "round " << round << ": " << echo_last_error();
    }
    float one = 1;
    echo_request_t request = nullptr;  // with its thread
    ASSERT_EQ(echo_all_reduce_start(&one, &one, 1, ECHO_FLOAT32, comms[0], nullptr, nullptr, &request), ECHO_SUCCESS);
    ASSERT_EQ(echo_wait(request), ECHO_SUCCESS) << echo_last_error();
    echo_comm_destroy(comms[0]);
  };
  const int ranks = GetParam() == Kind::kInproc ? 1 : 2;
  spawn_processes(
      ranks,
      [&](int rank, int) {
        const auto mappings = [] { return mappings_with(""); };
        for (int round = 0; round < 5; ++round) once(rank, round);  // what is made once for the life of the process
        const int descriptors = open_descriptors();
        const int before = mappings();
        for (int round = 5; round < times && !::testing::Test::HasFatalFailure(); ++round) once(rank, round);
        EXPECT_EQ(open_descriptors(), descriptors);
        if (!kAddressSanitizer) {  // its allocator keeps what was freed
          EXPECT_LE(mappings(), before + 8) << "the allocator may keep a few";
        }
      },
      100s);
}

// R7, I2: a rank that is stopped or sleeps: the others get the time-out of their call, with its number and the rank.
TEST_P(Endurance, ASlowRankIsNamedAfterTheTimeoutOfTheCall) {
  echo_config_t config ECHO_CONFIG_INITIALIZER;
  config.timeout_ms = 500;
  over_comm(
      GetParam(), 3,
      [&](echo_comm_t comm) {
        std::vector<float> data(1000, 1.0F);
        const auto reduce = [&] {
          return echo_all_reduce(data.data(), data.data(), data.size(), ECHO_FLOAT32, comm, nullptr, nullptr);
        };
        ASSERT_EQ(reduce(), ECHO_SUCCESS) << echo_last_error();
        if (echo_comm_rank(comm) == 1) {
          std::this_thread::sleep_for(1500ms);
          EXPECT_EQ(reduce(), ECHO_ERROR_TIMEOUT) << "whoever comes late learns that the communicator has failed";
          return;
        }
        const int64_t begin = now_ns();
        EXPECT_EQ(reduce(), ECHO_ERROR_TIMEOUT);
        EXPECT_LT(now_ns() - begin, 2'500'000'000);
        EXPECT_THAT(echo_last_error(), AllOf(HasSubstr("call 2 timed out after 500 ms"), HasSubstr("rank 1")));
        std::this_thread::sleep_for(1500ms);  // so that rank 1 does not see this one leave first
      },
      config);
}

// D2: one rank makes a call more than the others.
TEST_P(Endurance, AnExtraCallIsNamedByNumber) {
  echo_config_t config ECHO_CONFIG_INITIALIZER;
  config.timeout_ms = 500;
  over_comm(
      GetParam(), 2,
      [&](echo_comm_t comm) {
        float one = 1;
        for (int call = 1; call <= 56; ++call) {
          ASSERT_EQ(echo_all_reduce(&one, &one, 1, ECHO_FLOAT32, comm, nullptr, nullptr), ECHO_SUCCESS);
        }
        if (echo_comm_rank(comm) == 0) {
          std::this_thread::sleep_for(1s);
          return;
        }
        EXPECT_EQ(echo_all_reduce(&one, &one, 1, ECHO_FLOAT32, comm, nullptr, nullptr), ECHO_ERROR_TIMEOUT);
        EXPECT_THAT(echo_last_error(), AllOf(HasSubstr("call 57"), HasSubstr("rank 0 is still at call 56")));
      },
      config);
}

// D3: the root of a broadcast may run ahead of its readers, by as many calls as there are slots. Nobody reads a later one.
TEST_P(Endurance, AReaderSomeCallsBehindReadsItsOwn) {
  over_comm(GetParam(), 3, [&](echo_comm_t comm) {
    Random random(static_cast<uint64_t>(echo_comm_rank(comm)));
    std::vector<float> data(5000);
    for (int call = 0; call < 300; ++call) {
      const float value = static_cast<float>(call);
      if (echo_comm_rank(comm) == 0) std::ranges::fill(data, value);
      if (echo_comm_rank(comm) == 2 && random.below(20) == 0) std::this_thread::sleep_for(10ms);
      ASSERT_EQ(echo_broadcast(data.data(), data.data(), data.size(), ECHO_FLOAT32, 0, comm), ECHO_SUCCESS)
          << echo_last_error();
      ASSERT_EQ(std::ranges::count(data, value), 5000) << "call " << call;
    }
  });
}

TEST_P(Endurance, AnAbortFromAnotherThreadEndsEveryRanksCall) {  // D7
  over_comm(GetParam(), 3, [&](echo_comm_t comm) {
    float one = 1;
    ASSERT_EQ(echo_barrier(comm), ECHO_SUCCESS) << echo_last_error();
    std::thread watcher;
    if (echo_comm_rank(comm) == 2) {
      watcher = std::thread([comm] {
        std::this_thread::sleep_for(200ms);
        echo_comm_abort(comm, "the operator had enough");
      });
      watcher.join();
    }
    const int64_t begin = now_ns();
    EXPECT_EQ(echo_all_reduce(&one, &one, 1, ECHO_FLOAT32, comm, nullptr, nullptr), ECHO_ERROR_ABORTED);
    EXPECT_LT(now_ns() - begin, 2'000'000'000);
    EXPECT_THAT(echo_last_error(), HasSubstr("the operator had enough"));
    std::this_thread::sleep_for(300ms);
  });
}

}  // namespace
}  // namespace echo_comm::testing
