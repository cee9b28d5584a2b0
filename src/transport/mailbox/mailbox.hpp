// The transport over shared memory: the four verbs on the region of region.hpp. inproc and shm differ only in where
// the memory comes from and in how the death of a peer shows (Backing).
//
// A slot holds one message of a route and is used again kSlots messages later. Two counters protect it:
//
//   produced   messages sent on the route. Its one writer, the sender, stores n + 1 after the bytes and the length
//              of message n are in the slot; a reader that loads it (acquire) may read them.
//   consumed   messages released, one counter per reader. Its one writer, the reader, stores n + 1 when it will not
//              read message n again; the sender writes message n + kSlots only after it has loaded (acquire) more
//              than n from every reader. With an earlier write a slow reader would see bytes of two messages.
//
// Both stores are sequentially consistent, which includes the release that the invariant needs, because the rank on
// the other side may be about to sleep (doorbell.hpp).
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/mailbox/fork_guard.hpp"
#include "transport/mailbox/region.hpp"
#include "transport/transport.hpp"

namespace echo_comm::core {

// Keeps the region's memory while a mailbox uses it.
class Backing {
 public:
  Backing() = default;
  Backing(const Backing&) = delete;
  Backing& operator=(const Backing&) = delete;
  virtual ~Backing() = default;
  // True when the peer is gone without having left. Called every kLifeCheck while a rank waits.
  [[nodiscard]] virtual bool died(int /*rank*/) const noexcept { return false; }
};

class Mailbox final : public Transport {
 public:
  // `region` is attached and all its ranks announce themselves. `name` is the transport's, a literal.
  Mailbox(Region region, int rank, const char* name, std::shared_ptr<const Backing> backing);
  ~Mailbox() override;

  [[nodiscard]] int rank() const noexcept override { return rank_; }
  [[nodiscard]] int size() const noexcept override { return region_.size(); }
  [[nodiscard]] const char* name() const noexcept override { return name_; }
  [[nodiscard]] std::size_t max_message() const noexcept override {
    return static_cast<std::size_t>(region_.slot_bytes());
  }
  [[nodiscard]] std::size_t shared_bytes() const noexcept override { return static_cast<std::size_t>(region_.bytes()); }

  void begin_call(uint64_t sequence) noexcept override;
  std::span<std::byte> acquire(int to, const Deadline& deadline) override;
  void commit(int to, std::size_t bytes) override;
  Route arrival(int from, Route preferred, const Deadline& deadline) override;
  std::span<const std::byte> receive(int from, Route route, const Deadline& deadline) override;
  void release(int from, Route route) override;
  void fail(const Error& error) noexcept override;
  void check() const override;
  [[nodiscard]] WaitStats wait_stats() const noexcept override { return stats_; }

 private:
  struct Goal {
    const std::atomic<uint64_t>* counter = nullptr;
    uint64_t value = 0;

    [[nodiscard]] bool reached() const noexcept {
      return counter != nullptr && counter->load(std::memory_order_seq_cst) >= value;
    }
  };
  // What a rank waits for: a counter of `peer`, or either of two.
  struct Awaited {
    int peer;
    int route_to;  // a rank or kEveryone
    bool is_room;  // waits for a slot to be released, not for a message
    Goal goal;
    Goal other{};

    [[nodiscard]] bool reached() const noexcept { return goal.reached() || other.reached(); }
  };
  // This side's view of a route it sends on.
  struct Sending {
    uint64_t sent = 0;
    bool acquired = false;
  };

  void require_usable() const;
  [[nodiscard]] Sending& sending(int to);
  [[nodiscard]] uint64_t& received(int from, Route route);
  [[nodiscard]] Goal next_message(int from, Route route);

  // Returns when reached; else records the failure it found and throws it.
  void wait(const Awaited& awaited, const Deadline& deadline);
  [[nodiscard]] bool spin(const Awaited& awaited);
  void sleep_until(const Awaited& awaited, const Deadline& deadline);
  void check_lives(const Awaited& awaited);
  [[noreturn]] void raise(const Error& error);
  [[nodiscard]] Error timed_out(const Awaited& awaited, const Deadline& deadline) const;
  [[nodiscard]] bool cores_for_all() const;

  Region region_;
  std::shared_ptr<const Backing> backing_;
  ForkGuard fork_guard_;
  int rank_;
  const char* name_;
  std::vector<Sending> sending_;            // by receiver, then everyone
  std::vector<uint64_t> received_;          // messages released, by sender: pair routes, then everyone's
  std::chrono::nanoseconds spin_time_{-1};  // not decided yet
  std::optional<Error> raised_;             // what ended a wait of this rank: final, whatever becomes of the record
  WaitStats stats_;
};

}  // namespace echo_comm::core
