#include "base/workers.hpp"

#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>

namespace echo_comm::core {
namespace {

// Threads started while this lives take no signals: handlers of the program run on the program's own threads.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &earlier_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &earlier_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t earlier_;
};

}  // namespace

int usable_processors() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));  // more than a cpu_set_t can hold
}

Workers::~Workers() {
  if (threads_.empty()) return;
  // Forked: nothing to join, and threads that are not here may hold or await the signal for ever.
  if (process_ != getpid()) {
    for (std::thread& thread : threads_) thread.detach();
    static_cast<void>(signal_.release());
    return;
  }
  {
    const std::lock_guard lock(signal_->mutex);
    stop_ = true;
  }
  signal_->changed.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Workers::start() {
  process_ = getpid();
  const SignalsBlocked blocked;
  try {
    while (static_cast<int>(threads_.size()) + 1 < wanted_) threads_.emplace_back([this] { serve(); });
  } catch (const std::system_error&) {
    wanted_ = static_cast<int>(threads_.size()) + 1;  // visible in threads()
  }
}

void Workers::run(int64_t pieces, const std::function<void(int64_t)>& body) {
  if (pieces > 1 && wanted_ > 1 && threads_.empty()) start();
  if (pieces <= 1 || threads_.empty()) {
    for (int64_t piece = 0; piece < pieces; ++piece) body(piece);
    return;
  }
  {
    const std::lock_guard lock(signal_->mutex);
    body_ = &body;
    pieces_ = pieces;
    next_.store(0, std::memory_order_relaxed);
    busy_ = static_cast<int>(threads_.size());
    ++job_;
  }
  signal_->changed.notify_all();
  work();
  std::unique_lock lock(signal_->mutex);
  signal_->changed.wait(lock, [&] { return busy_ == 0; });
}

void Workers::work() {
  for (int64_t piece = next_.fetch_add(1, std::memory_order_relaxed); piece < pieces_;
       piece = next_.fetch_add(1, std::memory_order_relaxed)) {
    (*body_)(piece);
  }
}

void Workers::serve() {
  uint64_t done = 0;
  std::unique_lock lock(signal_->mutex);
  while (true) {
    signal_->changed.wait(lock, [&] { return stop_ || job_ != done; });
    if (stop_) return;
    done = job_;
    lock.unlock();
    work();
    lock.lock();
    if (--busy_ == 0) signal_->changed.notify_all();
  }
}

}  // namespace echo_comm::core
