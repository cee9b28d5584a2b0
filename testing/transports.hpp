// Runs what one rank does with its transport on `size` ranks. Needs the room transport.
#pragma once

#include <cstdint>
#include <functional>

#include "testing/processes.hpp"
#include "testing/ranks.hpp"
#include "transport/transport.hpp"

namespace echo_comm::testing {

using TransportBody = std::function<void(core::Transport& transport)>;

// Ranks are threads over inproc, or processes over shm with a name of their own. slot_bytes 0: by size. The transport
// of a rank is destroyed when its body ends, also by an exception, so that the others do not wait for it.
void over_inproc(int size, const TransportBody& body, int64_t slot_bytes = 0);
void over_shm(int size, const TransportBody& body, int64_t slot_bytes = 0);

enum class Kind { kInproc, kShm };
const char* name_of(Kind kind);
void over(Kind kind, int size, const TransportBody& body, int64_t slot_bytes = 0);

}  // namespace echo_comm::testing
