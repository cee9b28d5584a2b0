#include "collective/progress.hpp"

#include <unistd.h>

#include <system_error>
#include <utility>

#include "base/error.hpp"

namespace echo_comm::core {

bool Ticket::done() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

void Ticket::wait() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return done_; });
  if (error_) std::rethrow_exception(error_);
}

void Ticket::finish(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  error_ = std::move(error);
  done_ = true;
  changed_.notify_all();
}

Progress::~Progress() {
  if (!thread_) return;
  if (in_forked_child()) {
    // The thread lives in the parent alone: there is nothing to join, and the condition would wait for it for ever.
    static_cast<void>(thread_.release());
    static_cast<void>(queue_.release());
    return;
  }
  {
    const std::lock_guard lock(queue_->mutex);
    queue_->stop = true;
    queue_->changed.notify_all();
  }
  thread_->join();
}

bool Progress::in_forked_child() const { return thread_ != nullptr && process_ != getpid(); }

std::shared_ptr<Ticket> Progress::start(std::function<void()> call) {
  auto ticket = std::make_shared<Ticket>();
  const std::lock_guard lock(queue_->mutex);
  if (!thread_) {
    try {
      process_ = getpid();
      thread_ = std::make_unique<std::thread>([this] { serve(); });
    } catch (const std::system_error& error) {
      fail(ErrorCode::kSystem, "the thread for started calls: ", error.what(),
           "; make blocking calls or raise the limit of threads");
    }
  }
  queue_->jobs.push_back({std::move(call), ticket});
  ++queue_->pending;
  queue_->changed.notify_all();
  return ticket;
}

int64_t Progress::pending() const {
  if (in_forked_child()) return 0;
  const std::lock_guard lock(queue_->mutex);
  return queue_->pending;
}

void Progress::drain() const {
  if (in_forked_child()) return;
  std::unique_lock lock(queue_->mutex);
  queue_->changed.wait(lock, [this] { return queue_->pending == 0; });
}

void Progress::serve() {
  std::unique_lock lock(queue_->mutex);
  for (;;) {
    queue_->changed.wait(lock, [this] { return queue_->stop || !queue_->jobs.empty(); });
    if (queue_->jobs.empty()) return;
    Job job = std::move(queue_->jobs.front());
    queue_->jobs.pop_front();
    lock.unlock();
    std::exception_ptr error;
    try {
      job.call();
    } catch (...) {
      error = std::current_exception();
    }
    job.call = nullptr;  // what it holds is freed before its caller goes on
    lock.lock();
    --queue_->pending;
    queue_->changed.notify_all();
    lock.unlock();
    job.ticket->finish(error);
    lock.lock();
  }
}

}  // namespace echo_comm::core
