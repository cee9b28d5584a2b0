// The memfd behind a region, and the ranks' signs of life on it.
//
// Sign of life: each rank write-locks byte `rank` of the memfd for as long as it lives; the kernel drops the lock with
// the process, however it ends, and any rank can ask about any byte. No process ids: ranks may live in different PID
// namespaces, and ids are reused.
//
// They are the old per-process record locks on purpose, not open-file-description locks: a forked child (a data
// loader's worker) inherits the latter and would make its dead parent look alive. Two prices:
//   - two ranks in one process cannot be told apart, so the rendezvous refuses them;
//   - the lock is gone when the process closes any descriptor of the memfd, so the descriptor stays in here.
#pragma once

#include <cstdint>
#include <string>

#include "transport/mailbox/mailbox.hpp"
#include "transport/mailbox/mapping.hpp"
#include "transport/mailbox/region.hpp"
#include "transport/shm/socket.hpp"

namespace echo_comm::core {

// A memfd of the region's size that can neither shrink nor grow: nobody can make a peer's access fault.
Fd create_memory_file(const Region& region, const std::string& name);

class SharedMemory final : public Backing {
 public:
  // Checks the file, locks this rank's byte, reserves this rank's section and maps all of it. Each rank reserves what
  // it writes, so that the pages lie on its own NUMA node and count for its own container.
  SharedMemory(Fd file, const Region& region, int rank, const std::string& name);

  [[nodiscard]] std::byte* bytes() const noexcept { return memory_.bytes(); }
  [[nodiscard]] int file() const noexcept { return file_.get(); }
  [[nodiscard]] bool died(int rank) const noexcept override;
  // Keeps rank 0's hold on the communicator's name for as long as the memory.
  void keep(Fd guard) noexcept { guard_ = std::move(guard); }

 private:
  Fd guard_;
  Fd file_;
  Mapping memory_;
};

}  // namespace echo_comm::core
