// Owner of one mmap()ed piece of memory. Movable, not copyable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace echo_comm::core {

class Mapping {
 public:
  // Zeroed pages, first touched by whoever writes them. Throws kMemory.
  static Mapping anonymous(int64_t bytes);
  // All of the file `fd`, shared. Empty when the kernel refuses; errno says why.
  static Mapping shared(int fd, int64_t bytes) noexcept;

  Mapping() = default;
  Mapping(Mapping&& other) noexcept
      : bytes_(std::exchange(other.bytes_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Mapping();

  [[nodiscard]] std::byte* bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  Mapping(void* bytes, std::size_t size) : bytes_(static_cast<std::byte*>(bytes)), size_(size) {}

  std::byte* bytes_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace echo_comm::core
