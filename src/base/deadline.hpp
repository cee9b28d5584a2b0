// A point in monotonic time by which a call must be over. Copied freely; never extended inside a call.
#pragma once

#include <chrono>

namespace echo_comm::core {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  static Deadline in(std::chrono::milliseconds time) { return Deadline(Clock::now() + time, time); }

  [[nodiscard]] bool passed() const { return Clock::now() >= at_; }
  [[nodiscard]] std::chrono::nanoseconds left() const { return at_ - Clock::now(); }
  // The whole time that was allowed, for messages.
  [[nodiscard]] std::chrono::milliseconds allowed() const { return allowed_; }

 private:
  Deadline(Clock::time_point at, std::chrono::milliseconds allowed) : at_(at), allowed_(allowed) {}
  Clock::time_point at_;
  std::chrono::milliseconds allowed_;
};

}  // namespace echo_comm::core
