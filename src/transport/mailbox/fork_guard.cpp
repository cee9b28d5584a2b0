#include "transport/mailbox/fork_guard.hpp"

#include <sys/mman.h>
#include <unistd.h>

namespace echo_comm::core {

ForkGuard::ForkGuard()
    : page_(Mapping::anonymous(4096)),
      wiped_in_child_(madvise(page_.bytes(), page_.size(), MADV_WIPEONFORK) == 0),
      creator_(getpid()) {
  *page_.bytes() = std::byte{1};
}

bool ForkGuard::asks_pid() const noexcept { return getpid() != creator_; }

}  // namespace echo_comm::core
