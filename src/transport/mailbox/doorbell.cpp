#include "transport/mailbox/doorbell.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace echo_comm::core {

void Doorbell::sleep(uint32_t bell, std::chrono::nanoseconds at_most) noexcept {
  if (at_most.count() <= 0) return;
  timespec time{};
  time.tv_sec = static_cast<time_t>(at_most.count() / 1'000'000'000);
  time.tv_nsec = static_cast<long>(at_most.count() % 1'000'000'000);
  // Every way to return (woken, changed, timed out, a signal) leads to the same: the caller looks again.
  syscall(SYS_futex, &rings, FUTEX_WAIT, bell, &time, nullptr, 0);
}

void Doorbell::ring_sleeper() noexcept {
  rings.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, &rings, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace echo_comm::core
