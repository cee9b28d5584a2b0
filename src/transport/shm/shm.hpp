// shm: the ranks are processes of one host. They share an anonymous file (memfd) that has no name: nobody can guess
// or open it, nothing is left behind by a crash, and the size of /dev/shm does not matter.
//
//   shm.cpp      options, the transport's creation
//   memory.cpp   the memfd: reserved in full so that no write ever faults, sealed so that nobody can shrink it;
//                the sign of life of each rank is a record lock on it
//   host.cpp     rendezvous, rank 0: gathers the others, checks that all agree, hands out the memfd
//   join.cpp     rendezvous, the others
//   socket.cpp   the few socket calls
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "transport/transport.hpp"

namespace echo_comm::core {

struct ShmOptions {
  std::string name;  // 1 to 64 characters of A-Z a-z 0-9 . _ -
  int rank = 0;
  int size = 1;
  int64_t slot_bytes = 0;  // 0: by size
  uint64_t settings = 0;   // fingerprint of whatever else must be equal on all ranks
  std::chrono::milliseconds timeout{30'000};
};

// Returns when all ranks joined. Throws kState when the name or the rank is taken by a live process, kMismatch when
// the ranks disagree (on all of them), kTimeout when ranks are missing, kPeer when one died on the way, kSystem when
// there is not enough memory.
std::unique_ptr<Transport> create_shm(const ShmOptions& options);

}  // namespace echo_comm::core
