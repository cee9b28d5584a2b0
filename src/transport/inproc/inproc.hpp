// inproc: all ranks are threads of this process and share one piece of its memory. No registry, no name.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "transport/transport.hpp"

namespace echo_comm::core {

// One transport per rank, in rank order; each may be destroyed by itself. slot_bytes 0: by size.
std::vector<std::unique_ptr<Transport>> create_inproc(int size, int64_t slot_bytes = 0);

}  // namespace echo_comm::core
