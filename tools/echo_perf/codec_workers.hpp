// Threads that do a piece of work together, again and again.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

namespace echo_comm::tools {

class Workers {
 public:
  using Body = std::function<void(int worker)>;

  // Starts count - 1 threads; the caller of run() is the first worker. Throws std::system_error when they cannot be had.
  explicit Workers(int count);
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;
  ~Workers() { stop(); }

  [[nodiscard]] int count() const { return static_cast<int>(shares_.size()); }

  // Calls body(0), ..., body(count - 1) at the same time. Gives the seconds from the first that began to the last that
  // ended; waking the threads is not in it. Throws what the first of the bodies threw.
  double run(const Body& body);

 private:
  using Clock = std::chrono::steady_clock;
  struct alignas(64) Share {
    Clock::time_point begin;
    Clock::time_point end;
    std::exception_ptr error;
  };
  void serve(int worker);
  void take_share(int worker);
  void stop();

  std::vector<Share> shares_;
  std::vector<std::thread> threads_;

  // run() writes `body_` and the counters, then moves `round_` on (release); a thread that sees the new round (acquire)
  // may read them. The decrement of `working_` (release) hands its share back to run() (acquire).
  const Body* body_ = nullptr;  // nullptr: end
  std::atomic<std::uint32_t> round_ = 0;
  std::atomic<int> arrived_ = 0;
  std::atomic<int> working_ = 0;
};

}  // namespace echo_comm::tools
