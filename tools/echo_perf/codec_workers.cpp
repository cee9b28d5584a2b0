#include "echo_perf/codec_workers.hpp"

#include <algorithm>

namespace echo_comm::tools {

Workers::Workers(int count) : shares_(static_cast<std::size_t>(count)) {
  threads_.reserve(shares_.size());
  try {
    for (int worker = 1; worker < count; ++worker) threads_.emplace_back([this, worker] { serve(worker); });
  } catch (...) {
    stop();
    throw;
  }
}

double Workers::run(const Body& body) {
  body_ = &body;
  arrived_.store(0, std::memory_order_relaxed);
  working_.store(count(), std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  take_share(0);
  for (int left = 0; (left = working_.load(std::memory_order_acquire)) != 0;) working_.wait(left);

  for (const Share& share : shares_) {
    if (share.error) std::rethrow_exception(share.error);
  }
  const auto first = std::ranges::min_element(shares_, {}, &Share::begin);
  const auto last = std::ranges::max_element(shares_, {}, &Share::end);
  return std::chrono::duration<double>(last->end - first->begin).count();
}

void Workers::serve(int worker) {
  for (std::uint32_t seen = 0;; ++seen) {
    round_.wait(seen, std::memory_order_acquire);
    if (body_ == nullptr) return;
    take_share(worker);
  }
}

// Nobody begins before all are awake. Yields instead of sleeping: the last one comes within microseconds, or needs this
// one's core.
void Workers::take_share(int worker) {
  Share& share = shares_[static_cast<std::size_t>(worker)];
  arrived_.fetch_add(1, std::memory_order_relaxed);
  while (arrived_.load(std::memory_order_relaxed) < count()) std::this_thread::yield();
  share.error = nullptr;
  share.begin = Clock::now();
  try {
    (*body_)(worker);
  } catch (...) {
    share.error = std::current_exception();
  }
  share.end = Clock::now();
  if (working_.fetch_sub(1, std::memory_order_acq_rel) == 1) working_.notify_one();
}

void Workers::stop() {
  body_ = nullptr;
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

}  // namespace echo_comm::tools
