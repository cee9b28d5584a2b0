#include "testing/ranks.hpp"

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

namespace echo_comm::testing {
namespace {

// Waits for all ranks to be done; the threads of a test that hangs cannot be ended, so the process is.
class Finish {
 public:
  explicit Finish(int size) : done_(static_cast<std::size_t>(size), false), left_(size) {}

  void rank_is_done(int rank) {
    const std::lock_guard lock(mutex_);
    done_[static_cast<std::size_t>(rank)] = true;
    if (--left_ == 0) all_done_.notify_all();
  }

  void wait(std::chrono::seconds watchdog) {
    std::unique_lock lock(mutex_);
    if (all_done_.wait_for(lock, watchdog, [this] { return left_ == 0; })) return;
    std::fprintf(stderr, "watchdog: after %lld s these ranks still run:", static_cast<long long>(watchdog.count()));
    for (std::size_t r = 0; r < done_.size(); ++r) {
      if (!done_[r]) std::fprintf(stderr, " %zu", r);
    }
    std::fprintf(stderr, "\n");
    std::abort();
  }

 private:
  std::mutex mutex_;
  std::condition_variable all_done_;
  std::vector<bool> done_;
  int left_;
};

}  // namespace

std::string text_of_current_exception() {
  try {
    throw;
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

void spawn_threads(int size, const RankBody& body, std::chrono::seconds watchdog) {
  Finish finish(size);
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank, size);
      } catch (...) {
        ADD_FAILURE() << "rank " << rank << " threw: " << text_of_current_exception();
      }
      finish.rank_is_done(rank);
    });
  }
  finish.wait(watchdog);
  for (std::thread& thread : threads) thread.join();
}

std::string unique_name() {
  std::random_device random;
  std::string name = "test-";
  for (int i = 0; i < 3; ++i) name += std::to_string(random()) + (i < 2 ? "." : "");
  return name;
}

bool eventually(const std::function<bool()>& condition, std::chrono::milliseconds within) {
  const auto end = std::chrono::steady_clock::now() + within;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace echo_comm::testing
