// How processes that know a name become ranks that share memory.
//
//   rank 0                                            rank r
//   binds  @echo_comm/UID/NAME       (the guard)
//   listens @echo_comm/UID/NAME/join                  connects, again and again until the deadline
//          <------------------------------------      Hello: rank, size, settings, process
//   checks it
//          ------------------------------------>      Note kRegion, with the memfd
//                                                     locks its byte, reserves, maps
//          <------------------------------------      Note kReady
//   all are ready: closes the join socket
//          ------------------------------------>      Note kGo
//
// Whoever fails instead sends Note kError; rank 0 passes the first error on to all that joined. A side that dies
// shows as a closed socket. The guard is a bound socket that nobody talks to; rank 0's transport holds it for life,
// so that a second job cannot start under the name of a live one. (A child that rank 0 forked holds it too.)
// Both sides ask the kernel for the other's user: the abstract namespace has no permissions.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transport/mailbox/region.hpp"
#include "transport/shm/memory.hpp"
#include "transport/shm/shm.hpp"
#include "transport/shm/socket.hpp"

namespace echo_comm::core {

inline constexpr uint64_t kRendezvousMagic = 0x4e49'4f4a'4f48'4345ULL;  // "ECHOJOIN"
inline constexpr uint32_t kRendezvousVersion = 1;

// A process, without relying on its id alone: ids repeat across PID namespaces.
struct ProcessIdentity {
  uint64_t pid = 0;
  uint64_t pid_namespace = 0;  // inode; 0 when /proc is not there
  uint64_t program = 0;        // random number that the kernel gives every started program; forks share it

  static ProcessIdentity own();
  bool operator==(const ProcessIdentity&) const = default;
};

// Magic and version stay in front in all versions, so that a rank with another library is told, not dropped.
struct Hello {
  uint64_t magic = kRendezvousMagic;
  uint32_t version = kRendezvousVersion;
  int32_t rank = 0;
  int32_t size = 0;
  uint32_t unused = 0;
  int64_t slot_bytes = 0;
  uint64_t settings = 0;
  ProcessIdentity process;
};
inline constexpr std::size_t kHelloPrefix = 12;
static_assert(sizeof(Hello) == 64);

enum class NoteKind : uint32_t { kRegion = 1, kReady = 2, kGo = 3, kError = 4 };

// The same in all versions.
struct Note {
  static constexpr std::size_t kTextBytes = 496;

  uint64_t magic = kRendezvousMagic;
  NoteKind kind = NoteKind::kError;
  int32_t code = 0;
  char text[kTextBytes] = {};

  static Note of(NoteKind kind) {
    Note note;
    note.kind = kind;
    return note;
  }
  static Note of(const Error& error);
  [[nodiscard]] Error error() const;
};
static_assert(sizeof(Note) == 512);

// Names of the two sockets.
SocketAddress guard_address(const std::string& name);
SocketAddress join_address(const std::string& name);

// "rank 1", "ranks 1, 3".
std::string ranks_text(const std::vector<int>& ranks);

// Both attach `region` to the memory they return; all ranks have announced themselves then.
std::shared_ptr<SharedMemory> host(const ShmOptions& options, Region& region, const Deadline& deadline);
std::shared_ptr<SharedMemory> join(const ShmOptions& options, Region& region, const Deadline& deadline);

}  // namespace echo_comm::core
