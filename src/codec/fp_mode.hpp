// The codec runs in round-to-nearest with denormals on, whatever the caller's thread is set to (deep learning
// frameworks flush denormals). The guard restores the caller's mode, flags included.
#pragma once

#include <cstdint>

namespace echo_comm::core {

class FpModeGuard {
 public:
  FpModeGuard() noexcept;
  ~FpModeGuard();
  FpModeGuard(const FpModeGuard&) = delete;
  FpModeGuard& operator=(const FpModeGuard&) = delete;

 private:
  uint64_t saved_;
};

}  // namespace echo_comm::core
