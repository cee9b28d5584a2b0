#include "base/workers.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <set>
#include <vector>

namespace echo_comm::core {
namespace {

TEST(Workers, RunEveryPieceOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    Workers workers(threads);
    for (const int64_t pieces : {0, 1, 2, 3, 7, 100}) {
      for (int job = 0; job < 50; ++job) {
        std::vector<std::atomic<int>> runs(static_cast<std::size_t>(pieces));
        workers.run(pieces, [&](int64_t piece) { ++runs[static_cast<std::size_t>(piece)]; });
        for (const std::atomic<int>& count : runs)
          ASSERT_EQ(count, 1) << threads << " threads, " << pieces << " pieces";
      }
    }
    EXPECT_EQ(workers.threads(), threads);
  }
}

// What pieces wrote is visible to the owner when run() returns, without any synchronisation of its own (tsan).
TEST(Workers, PublishWhatPiecesWrote) {
  Workers workers(4);
  std::vector<int64_t> values(64);
  for (int64_t round = 1; round <= 200; ++round) {
    workers.run(64, [&](int64_t piece) { values[static_cast<std::size_t>(piece)] += piece; });
    for (int64_t i = 0; i < 64; ++i) ASSERT_EQ(values[static_cast<std::size_t>(i)], round * i);
  }
}

TEST(Workers, StartNoThreadForOnePiece) {
  Workers workers(8);
  const auto caller = std::this_thread::get_id();
  workers.run(1, [&](int64_t) { EXPECT_EQ(std::this_thread::get_id(), caller); });
}

// Handlers of the program must not run on a thread it does not know.
TEST(Workers, TakeNoSignals) {
  Workers workers(3);
  const auto caller = std::this_thread::get_id();
  std::atomic<int> others{0};
  for (int job = 0; job < 100 && others == 0; ++job) {
    workers.run(64, [&](int64_t) {
      sigset_t mask;
      pthread_sigmask(SIG_SETMASK, nullptr, &mask);
      if (std::this_thread::get_id() == caller) {
        EXPECT_EQ(sigismember(&mask, SIGUSR1), 0);
        usleep(100);  // gives the others something to do
      } else {
        EXPECT_EQ(sigismember(&mask, SIGUSR1), 1);
        ++others;
      }
    });
  }
  EXPECT_GT(others, 0);
}

// A forked child has none of the threads; destroying its copy must not wait for them.
TEST(Workers, CanBeDestroyedInAForkedChild) {
  auto workers = std::make_unique<Workers>(3);
  workers->run(16, [](int64_t) {});
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    workers.reset();
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(Workers, ThereIsAProcessorToUse) { EXPECT_GE(usable_processors(), 1); }

}  // namespace
}  // namespace echo_comm::core
