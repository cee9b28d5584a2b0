#include "echo_perf/buffer.hpp"

#include <new>

namespace echo_comm::tools {

Buffer::Buffer(std::size_t bytes)
    : memory_(static_cast<std::byte*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096))) {
  if (memory_ == nullptr) throw std::bad_alloc();
}

}  // namespace echo_comm::tools
