// Calls that go on while their caller does something else: a thread that works them off in the order they were started.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace echo_comm::core {

// One started call. Shared by its caller and the thread, so that either may be gone before the other.
class Ticket {
 public:
  [[nodiscard]] bool done() const;
  // Waits, then throws what the call threw. Every later wait does the same.
  void wait() const;

 private:
  friend class Progress;
  void finish(std::exception_ptr error);

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool done_ = false;
  std::exception_ptr error_;
};

class Progress {
 public:
  Progress() = default;
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  // Ends when all started calls have: the owner makes them fail first if it does not want to wait.
  ~Progress();

  // The thread starts with the first call. Throws kSystem when the system refuses one.
  std::shared_ptr<Ticket> start(std::function<void()> call);
  // Started calls that have not ended. 0: whatever they wrote is visible to the caller.
  [[nodiscard]] int64_t pending() const;
  // Waits until there are none.
  void drain() const;

 private:
  struct Job {
    std::function<void()> call;
    std::shared_ptr<Ticket> ticket;
  };
  void serve();
  // Nothing is pending there, and the mutex may be locked for ever.
  [[nodiscard]] bool in_forked_child() const;

  struct Queue {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Job> jobs;
    int64_t pending = 0;
    bool stop = false;
  };

  std::unique_ptr<Queue> queue_ = std::make_unique<Queue>();
  pid_t process_ = 0;  // that started the thread; a forked child does not have it
  std::unique_ptr<std::thread> thread_;
};

}  // namespace echo_comm::core
