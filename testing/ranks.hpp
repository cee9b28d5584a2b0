// Harness for tests with several ranks. A test hands in what one rank does; the harness runs it `size` times, as
// threads or as processes, and turns every exception, failed expectation, crash and hang of a rank into a failure of
// the test that names the rank.
//
//   spawn_threads(4, [](int rank, int size) { ... });      one process, the body makes its own communicator
//   spawn_processes(4, [](int rank, int size) { ... });    the same, each rank a forked process (processes.hpp)
//   over_inproc(4, [](Transport& t) { ... });              transport already made (transports.hpp)
//   over_shm(4, [](Transport& t) { ... });
//
// No sleeps: tests wait for conditions with a deadline (eventually, SharedCells).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace echo_comm::testing {

using RankBody = std::function<void(int rank, int size)>;

// After that a test counts as hanging. Sanitizers slow things down several times.
inline constexpr std::chrono::seconds kWatchdog{60};

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitizer = true;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif
#else
inline constexpr bool kThreadSanitizer = false;
#endif

#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kAddressSanitizer = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif
#else
inline constexpr bool kAddressSanitizer = false;
#endif

// Runs the body once per rank, each in its own thread, and waits for all. Threads cannot be killed: when the watchdog
// expires the process is aborted, with a line that says which ranks hang.
void spawn_threads(int size, const RankBody& body, std::chrono::seconds watchdog = kWatchdog);

// A name no other test, process or run uses; fit for shm.
std::string unique_name();

// Waits until the condition holds; false when it does not within the time.
bool eventually(const std::function<bool()>& condition, std::chrono::milliseconds within = std::chrono::seconds(20));

// The text of the exception that is being handled.
std::string text_of_current_exception();

// Random numbers that are the same everywhere for the same seed (splitmix64).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  // In [0, bound).
  uint64_t below(uint64_t bound) { return next() % bound; }

 private:
  uint64_t state_;
};

}  // namespace echo_comm::testing
