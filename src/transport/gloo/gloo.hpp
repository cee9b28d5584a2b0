// gloo: the ranks talk over TCP, on one host or several, through the library Gloo.
//
//   gloo.hpp          options; what the rest of Echo sees
//   load.cpp          opens the module libecho_comm_gloo.so, which alone is linked to Gloo; no_gloo.cpp is its stub
//   module.hpp        the one entry of that module, entry.cpp its definition
//   address.cpp       which address of this host to listen on
//   job.cpp           one job in a shared directory: who is rank 0, the job's id and secret tokens, cleaning up
//   store.hpp         Gloo's stores as the rendezvous needs them
//   rendezvous.cpp    the ranks find each other, prove that they agree, connect
//   frame.hpp         what goes over the wire
//   link.cpp          the connection to one peer
//   mesh.cpp          all of them, and this rank's copy of the region that they keep up to date
//   endpoint.cpp      the transport
//
// A rank keeps a region as shm does (mailbox/region.hpp), but of its own: what a peer writes there under shm, the
// link to that peer writes here when it arrives. So waits, deadlines, failures and their texts are the mailbox's.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/transport.hpp"

namespace echo_comm::core {

struct GlooOptions {
  std::string directory;  // absolute, exists, shared by all ranks
  std::string interface;  // name of the network interface to listen on; empty: chosen
  std::string host;       // or the address or host name to listen on
  int rank = 0;
  int size = 1;
  int64_t slot_bytes = 0;  // 0: by size
  uint64_t settings = 0;   // fingerprint of whatever else must be equal on all ranks
  std::chrono::milliseconds timeout{30'000};
};

// Returns when all ranks are connected. Throws kArgument for a directory or an interface that is not there, kState when
// a live job uses the directory or the rank is taken, kMismatch when the ranks disagree (on all of them), kTimeout when
// ranks are missing, kPeer when one died on the way, kSystem when the module or the network is not there.
std::unique_ptr<Transport> create_gloo(const GlooOptions& options);

// All ranks in this process, over the loopback interface. One transport per rank, in rank order.
std::vector<std::unique_ptr<Transport>> create_gloo_in_process(
    int size, int64_t slot_bytes = 0, std::chrono::milliseconds timeout = std::chrono::seconds(30));

// Why there is no Gloo, or nothing when there is.
std::optional<std::string> gloo_missing();

// Slot size when nobody chose one: the memory registered per rank stays near 64 MiB.
inline int64_t gloo_slot_bytes(int size) {
  constexpr int64_t kBudget = 64 << 20;
  constexpr int64_t kPage = 4096;
  // Per peer: its two routes to this rank and this rank's to it; and the route to everyone.
  const int64_t slots = kSlots * (3 * int64_t{size - 1} + 1);
  return std::clamp<int64_t>(kBudget / slots / kPage * kPage, 16 << 10, 256 << 10);
}

}  // namespace echo_comm::core
