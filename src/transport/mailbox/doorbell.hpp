// How a rank sleeps until a peer changes something, without losing a wake-up and without a system call when nobody
// sleeps.
//
//   waiter                                      notifier
//   1  bell = rings                             a  change the state (a counter, a flag)
//   2  sleeping = 1                             b  if sleeping == 0: done
//   3  look at the state again; done if so      c  rings += 1
//   4  FUTEX_WAIT while rings == bell           d  FUTEX_WAKE
//
// Step a and the look of step 3, step 2 and the look of step b are sequentially consistent. So either the waiter's
// look (3) sees the change (a), or the notifier's look (b) comes after 2 and sees a sleeper. In the second case c
// comes after 1, hence the futex either finds rings != bell and returns at once, or is already queued when d comes.
// A weaker a or 3 would let both sides miss each other (store buffering).
//
// The same address may be mapped by several processes: the futex is not a private one.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace echo_comm::core {

struct alignas(64) Doorbell {
  std::atomic<uint32_t> rings{0};     // peers
  std::atomic<uint32_t> sleeping{0};  // owner

  // Notifier, after its sequentially consistent change.
  void ring() noexcept {
    if (sleeping.load(std::memory_order_seq_cst) != 0) ring_sleeper();
  }

  // Waiter. listen() is steps 1 and 2; the caller then looks again and calls sleep() or not, and always done().
  uint32_t listen() noexcept {
    const uint32_t bell = rings.load(std::memory_order_seq_cst);
    sleeping.store(1, std::memory_order_seq_cst);
    return bell;
  }
  void sleep(uint32_t bell, std::chrono::nanoseconds at_most) noexcept;
  void done() noexcept { sleeping.store(0, std::memory_order_relaxed); }

 private:
  void ring_sleeper() noexcept;
};

static_assert(sizeof(Doorbell) == 64 && sizeof(std::atomic<uint32_t>) == 4);
static_assert(std::atomic<uint32_t>::is_always_lock_free && std::atomic<uint64_t>::is_always_lock_free);

}  // namespace echo_comm::core
