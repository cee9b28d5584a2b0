// What a rank gets when a peer is late, gone, dead or has failed: always an error with a name in it, never a hang.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "testing/transports.hpp"
#include "transport/inproc/inproc.hpp"
#include "transport/shm/shm.hpp"

namespace echo_comm::core {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Kind;
using ::testing::StartsWith;

Deadline soon() { return Deadline::in(30s); }

void send(Transport& transport, int to) {
  static_cast<void>(transport.acquire(to, soon()));
  transport.commit(to, 8);
}

void take(Transport& transport, int from, Route route = Route::kPair) {
  static_cast<void>(transport.receive(from, route, soon()));
  transport.release(from, route);
}

// The error that `act` throws.
template <typename Act>
Error error_of(Act act) {
  try {
    act();
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::kInternal, "nothing was thrown");
}

Error receive_error(Transport& transport, int from, Route route = Route::kPair, Deadline deadline = soon()) {
  return error_of([&] { static_cast<void>(transport.receive(from, route, deadline)); });
}

#define SKIP_WITHOUT_FORK() \
  if (testing::kThreadSanitizer) GTEST_SKIP() << "the thread sanitizer does not fork"

class Failure : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (const std::string why = testing::cannot_test(GetParam()); !why.empty()) GTEST_SKIP() << why;
  }
};

INSTANTIATE_TEST_SUITE_P(All, Failure, ::testing::Values(Kind::kInproc, Kind::kShm, Kind::kGlooInProcess, Kind::kGloo),
                         [](const auto& param) { return std::string(testing::name_of(param.param)); });

// D2, I2
TEST_P(Failure, TimeoutNamesTheAwaitedRankAndBothCalls) {
  testing::SharedCells cells;
  over(GetParam(), 3, [&](Transport& transport) {
    if (transport.rank() == 1) {
      transport.begin_call(56);
      send(transport, 0);
      EXPECT_TRUE(testing::eventually([&] { return cells[0] == 1; }));
      return;
    }
    if (transport.rank() == 2) {
      EXPECT_THAT(receive_error(transport, 1).text(), StartsWith("rank 0: "));
      cells[0] = 1;
      return;
    }
    take(transport, 1);  // so that call 56 is visible
    transport.begin_call(57);
    const Error error = receive_error(transport, 1, Route::kPair, Deadline::in(300ms));
    EXPECT_EQ(error.code(), ErrorCode::kTimeout);
    EXPECT_EQ(error.text(), text(transport.name(),
                                 ": call 57 timed out after 300 ms: rank 1 is still at call 56 "
                                 "(waiting for its message to rank 0)"));
    EXPECT_TRUE(testing::eventually([&] { return cells[0] == 1; }));
  });
}

TEST(FailureTexts, TellAMessageToEveryoneFromRoomAndWhoIsAhead) {
  auto transports = create_inproc(3);
  transports[1]->begin_call(9);
  transports[0]->begin_call(9);
  EXPECT_EQ(receive_error(*transports[0], 1, Route::kEveryone, Deadline::in(1s)).text(),
            "inproc: call 9 timed out after 1 s: rank 1 is also at call 9 (waiting for its message to everyone)");
  auto others = create_inproc(3);
  others[2]->begin_call(10);
  others[0]->begin_call(9);
  for (int i = 0; i < kSlots; ++i) send(*others[0], kEveryone);
  for (int i = 0; i < kSlots; ++i) take(*others[1], 0, Route::kEveryone);
  EXPECT_EQ(error_of([&] { static_cast<void>(others[0]->acquire(kEveryone, Deadline::in(20ms))); }).text(),
            "inproc: call 9 timed out after 20 ms: rank 2 is already at call 10 (waiting for it to release a message "
            "of rank 0 to everyone)");
}

// D8
TEST_P(Failure, TheFirstOneReachesEveryRankWithItsCodeAndText) {
  testing::SharedCells cells;
  over(GetParam(), 4, [&](Transport& transport) {
    if (transport.rank() == 2) {
      const Error own(ErrorCode::kMismatch, "all_reduce: 1 is not 2");
      transport.fail(own);
      transport.fail(Error(ErrorCode::kInternal, "too late"));
      EXPECT_EQ(error_of([&] { transport.check(); }).text(), own.text());
      EXPECT_EQ(error_of([&] { static_cast<void>(transport.acquire(0, soon())); }).text(), own.text());
      EXPECT_TRUE(testing::eventually([&] { return cells[0] == 3; }));
      return;
    }
    const Error error = receive_error(transport, 2);
    EXPECT_EQ(error.code(), ErrorCode::kMismatch);
    EXPECT_EQ(error.text(), "rank 2: all_reduce: 1 is not 2");
    EXPECT_EQ(error_of([&] { transport.check(); }).text(), error.text());
    EXPECT_EQ(error_of([&] { static_cast<void>(transport.acquire(kEveryone, soon())); }).text(), error.text());
    transport.fail(Error(ErrorCode::kInternal, "too late"));
    EXPECT_EQ(error_of([&] { transport.check(); }).text(), error.text());
    ++cells[0];
  });
}

TEST_P(Failure, FromAnotherThreadEndsTheWaitOfItsOwnRankAndOfPeers) {  // D7: abort
  over(GetParam(), 2, [&](Transport& transport) {
    if (transport.rank() == 1) {
      EXPECT_EQ(receive_error(transport, 0).text(), "rank 0: aborted by test");
      return;
    }
    std::atomic<bool> waiting{false};
    std::thread other([&] {
      EXPECT_TRUE(testing::eventually([&] { return waiting.load(); }));
      transport.fail(Error(ErrorCode::kAborted, "aborted by test"));
    });
    waiting = true;
    const Error error = receive_error(transport, 1);
    other.join();
    EXPECT_EQ(error.code(), ErrorCode::kAborted);
    EXPECT_EQ(error.text(), "aborted by test");
  });
}

TEST_P(Failure, ARankThatLeftIsNamedAfterItsMessagesWereDelivered) {
  testing::SharedCells cells;
  over(GetParam(), 3, [&](Transport& transport) {
    transport.begin_call(57);
    if (transport.rank() == 1) {
      send(transport, 0);
      send(transport, kEveryone);
      return;  // leaves
    }
    if (transport.rank() == 0) take(transport, 1);
    take(transport, 1, Route::kEveryone);
    ++cells[0];  // the first of them to fail ends it for both
    EXPECT_TRUE(testing::eventually([&] { return cells[0] == 2; }));
    const Error error = receive_error(transport, 1);
    EXPECT_EQ(error.code(), ErrorCode::kPeer);
    EXPECT_THAT(error.text(), HasSubstr(": rank 1 left the communicator after call 57"));
  });
}

TEST_P(Failure, RoomInARouteWhoseReaderLeftIsNotWaitedFor) {
  over(GetParam(), 2, [&](Transport& transport) {
    if (transport.rank() == 1) return;
    const Error error = error_of([&] {
      for (int i = 0; i <= kSlots; ++i) send(transport, kEveryone);
    });
    EXPECT_EQ(error.code(), ErrorCode::kPeer);
    EXPECT_THAT(error.text(), HasSubstr("rank 1 left the communicator before its first call"));
  });
}

// A rank that is done does not disturb those that still talk to each other.
TEST_P(Failure, LeavingIsNoFailureForRanksThatDoNotWaitForTheOneThatLeft) {
  over(GetParam(), 3, [&](Transport& transport) {
    if (transport.rank() == 2) return;
    for (int i = 0; i < 1000; ++i) {
      send(transport, 1 - transport.rank());
      take(transport, 1 - transport.rank());
    }
    transport.check();
  });
}

TEST_P(Failure, WrongUseIsAnErrorNotACorruption) {
  over(GetParam(), 2, [&](Transport& transport) {
    EXPECT_EQ(error_of([&] { transport.commit(1 - transport.rank(), 8); }).code(), ErrorCode::kInternal);
    EXPECT_EQ(error_of([&] { transport.release(1 - transport.rank(), Route::kPair); }).code(), ErrorCode::kInternal);
    EXPECT_EQ(error_of([&] { static_cast<void>(transport.acquire(transport.rank(), soon())); }).code(),
              ErrorCode::kInternal);
    EXPECT_EQ(receive_error(transport, 2).code(), ErrorCode::kInternal);
    EXPECT_EQ(receive_error(transport, -1).code(), ErrorCode::kInternal);
    static_cast<void>(transport.acquire(kEveryone, soon()));
    EXPECT_EQ(error_of([&] { transport.commit(kEveryone, transport.max_message() + 1); }).code(), ErrorCode::kInternal);
    transport.check();  // the communicator still works
    transport.commit(kEveryone, 8);
    take(transport, 1 - transport.rank(), Route::kEveryone);
  });
}

TEST(FailureTexts, LongTextsAreCutBetweenCharacters) {
  auto transports = create_inproc(2);
  std::string longest;
  while (longest.size() < 1000) longest += "\xc3\xa4\xe2\x82\xac";  // two characters of 2 and 3 bytes
  transports[0]->fail(Error(ErrorCode::kAborted, longest));
  const std::string got = error_of([&] { transports[0]->check(); }).text();
  EXPECT_EQ(longest.substr(0, got.size()), got);
  EXPECT_GT(got.size(), 400U);
  EXPECT_NE(static_cast<unsigned char>(longest[got.size()]) & 0xC0U, 0x80U);
}

// The child of a fork is no rank. D: data loaders fork from processes that hold communicators.
TEST(FailureTexts, AForkedChildIsRefusedAndItsParentIsNotDisturbed) {
  SKIP_WITHOUT_FORK();
  testing::over_shm(2, [](Transport& transport) {
    const int peer = 1 - transport.rank();
    const pid_t child = fork();
    if (child == 0) {
      int wrong = 0;
      const auto refused = [&](auto act) {
        const Error error = error_of(act);
        if (error.code() != ErrorCode::kState || error.text().find("after fork") == std::string::npos) ++wrong;
      };
      refused([&] { static_cast<void>(transport.acquire(peer, soon())); });
      refused([&] { static_cast<void>(transport.receive(peer, Route::kPair, soon())); });
      refused([&] { transport.commit(peer, 8); });
      refused([&] { transport.release(peer, Route::kPair); });
      refused([&] { transport.check(); });
      transport.begin_call(1000);
      transport.fail(Error(ErrorCode::kInternal, "from a child"));
      transport.~Transport();
      _exit(wrong);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    for (int i = 0; i < 100; ++i) {
      send(transport, peer);
      take(transport, peer);
    }
  });
}

// ---- death -----------------------------------------------------------------------------------------------------

// Rank 2 of 3 is killed while the others wait for it, or for each other; they must hear of it within two seconds.
// 50 times, and afterwards nothing is left. D7, E1, R7
TEST(Death, SurvivorsGetAnErrorWhenAPeerIsKilledMidCall) {
  SKIP_WITHOUT_FORK();
  const auto files_in_dev_shm = [] {
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
      count += entry.path().filename().string().find("echo") != std::string::npos ? 1 : 0;  // others may come and go
    }
    return count;
  };
  const int descriptors = testing::open_descriptors();
  const int files = files_in_dev_shm();
  for (int round = 0; round < 50; ++round) {
    testing::SharedCells cells;  // 0: killed at, 1 and 2: ranks 0 and 1 are about to wait
    const std::string name = testing::unique_name();
    testing::ProcessGroup group(3, [&](int rank, int size) {
      const auto transport = create_shm({name, rank, size});
      transport->begin_call(17);
      if (rank == 2) {
        if (round % 2 == 0) testing::eventually([&] { return cells[1] + cells[2] == 2; });
        cells[0] = testing::now_ns();
        kill(getpid(), SIGKILL);
      }
      const int awaited = rank == 0 || round % 3 != 0 ? 2 : 0;  // every third round rank 1 waits for a live rank
      cells[1 + rank] = 1;
      const Error error = receive_error(*transport, awaited);
      const double seconds = static_cast<double>(testing::now_ns() - cells[0]) * 1e-9;
      EXPECT_EQ(error.code(), ErrorCode::kPeer) << error.text();
      EXPECT_THAT(error.text(), HasSubstr("shm: rank 2 died during call 17"));
      EXPECT_LT(seconds, 2.0);
      // Never a second failure, no hang: the end is quick too.
      EXPECT_EQ(error_of([&] { transport->check(); }).code(), ErrorCode::kPeer);
    });
    const auto results = group.wait();
    EXPECT_EQ(results[2].signal, SIGKILL);
    for (int r = 0; r < 2; ++r) EXPECT_TRUE(results[static_cast<std::size_t>(r)].passed) << results[r].text;
    if (HasFailure()) return;
  }
  EXPECT_EQ(testing::open_descriptors(), descriptors);
  EXPECT_EQ(files_in_dev_shm(), files);
}

// The child of a dead rank holds all it inherited, yet the rank counts as dead.
TEST(Death, OfARankIsSeenWhileAChildOfItLives) {
  SKIP_WITHOUT_FORK();
  testing::SharedCells cells;
  const std::string name = testing::unique_name();
  testing::ProcessGroup group(2, [&](int rank, int size) {
    const auto transport = create_shm({name, rank, size});
    if (rank == 1) {
      const pid_t child = fork();
      if (child == 0) {
        for (;;) pause();
      }
      cells[1] = child;
      kill(getpid(), SIGKILL);
    }
    const Error error = receive_error(*transport, 1);
    EXPECT_THAT(error.text(), HasSubstr("rank 1 died before its first call"));
    EXPECT_EQ(kill(static_cast<pid_t>(cells[1].load()), 0), 0) << "the child still lives";
  });
  const auto results = group.wait();
  kill(static_cast<pid_t>(cells[1].load()), SIGKILL);
  EXPECT_TRUE(results[0].passed) << results[0].text;
}

// A stopped process is late, not dead.
TEST(Death, AStoppedRankTimesOutInstead) {
  SKIP_WITHOUT_FORK();
  testing::SharedCells cells;
  const std::string name = testing::unique_name();
  testing::ProcessGroup group(2, [&](int rank, int size) {
    const auto transport = create_shm({name, rank, size});
    if (rank == 1) {
      cells[1] = 1;
      raise(SIGSTOP);
      EXPECT_THAT(receive_error(*transport, 0).text(), StartsWith("rank 0: shm: call 0 timed out"));
      return;
    }
    const Error error = receive_error(*transport, 1, Route::kPair, Deadline::in(500ms));
    EXPECT_EQ(error.code(), ErrorCode::kTimeout) << error.text();
    cells[0] = 1;
  });
  EXPECT_TRUE(testing::eventually([&] { return cells[0] == 1; }));
  group.kill(1, SIGCONT);
  for (const auto& result : group.wait()) EXPECT_TRUE(result.passed) << result.text;
}

TEST(Death, TheJobCanStartAgainUnderTheSameNameAtOnce) {  // D7
  SKIP_WITHOUT_FORK();
  const std::string name = testing::unique_name();
  testing::ProcessGroup group(3, [&](int rank, int size) {
    const auto transport = create_shm({name, rank, size});
    if (rank != 1) kill(getpid(), SIGKILL);
    EXPECT_EQ(receive_error(*transport, 0).code(), ErrorCode::kPeer);
  });
  EXPECT_TRUE(group.wait()[1].passed);
  testing::spawn_processes(3, [&](int rank, int size) {
    const auto transport = create_shm({name, rank, size});
    send(*transport, kEveryone);
    for (int from = 0; from < size; ++from) {
      if (from != rank) take(*transport, from, Route::kEveryone);
    }
  });
}

}  // namespace
}  // namespace echo_comm::core
