// A few threads of one owner that share out the pieces of one job after the other.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace echo_comm::core {

// Processors that this process may run on, at least 1.
int usable_processors();

// Used by one thread at a time, which works too. Threads start with the first job of more than one piece.
class Workers {
 public:
  explicit Workers(int threads) : wanted_(threads) {}
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // The caller's included. Fewer than asked for when the system could not start them.
  [[nodiscard]] int threads() const { return wanted_; }

  // Calls body(0) to body(pieces - 1), each once, and returns when all have returned. body must not throw.
  void run(int64_t pieces, const std::function<void(int64_t)>& body);

 private:
  void start();
  void serve();
  void work();

  int wanted_;
  pid_t process_ = 0;  // that started the threads; a forked child has none of them
  std::vector<std::thread> threads_;

  struct Signal {
    std::mutex mutex;
    std::condition_variable changed;
  };
  std::unique_ptr<Signal> signal_ = std::make_unique<Signal>();
  uint64_t job_ = 0;  // number of the current job
  int busy_ = 0;      // threads that have not left it
  bool stop_ = false;

  // The job. Written by the owner while no thread is busy; the mutex publishes it.
  const std::function<void(int64_t)>* body_ = nullptr;
  int64_t pieces_ = 0;
  std::atomic<int64_t> next_{0};
};

}  // namespace echo_comm::core
