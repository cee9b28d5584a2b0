// Knows, at the price of one load, whether this process is the one that made the guard or a fork of it.
//
// A forked child shares the mapped mailboxes but is not a rank: a single release of its would free a message that
// its parent has not read. A page that the kernel empties in the child (MADV_WIPEONFORK, Linux 4.14) tells the two
// apart; comparing getpid() would cost a system call per message and remains for kernels without it.
#pragma once

#include <sys/types.h>

#include "transport/mailbox/mapping.hpp"

namespace echo_comm::core {

class ForkGuard {
 public:
  ForkGuard();
  [[nodiscard]] bool in_child() const noexcept { return wiped_in_child_ ? *page_.bytes() == std::byte{0} : asks_pid(); }

 private:
  [[nodiscard]] bool asks_pid() const noexcept;

  Mapping page_;
  bool wiped_in_child_;
  pid_t creator_;
};

}  // namespace echo_comm::core
