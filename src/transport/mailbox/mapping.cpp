#include "transport/mailbox/mapping.hpp"

#include <sys/mman.h>

#include <cerrno>

#include "base/error.hpp"

namespace echo_comm::core {

Mapping Mapping::anonymous(int64_t bytes) {
  const auto size = static_cast<std::size_t>(bytes);
  void* address = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) fail_errno(ErrorCode::kMemory, text(bytes, " bytes of memory"), errno);
  return {address, size};
}

Mapping Mapping::shared(int fd, int64_t bytes) noexcept {
  const auto size = static_cast<std::size_t>(bytes);
  void* address = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) return {};
  return {address, size};
}

Mapping::~Mapping() {
  if (bytes_ != nullptr) munmap(bytes_, size_);
}

}  // namespace echo_comm::core
