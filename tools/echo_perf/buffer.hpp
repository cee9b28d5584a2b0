// Memory that is measured.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>

namespace echo_comm::tools {

// Page-aligned bytes, so that two runs see the same alignment.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes);
  [[nodiscard]] std::byte* data() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
};

}  // namespace echo_comm::tools
