// The border between Echo and its Gloo module. Both are built together; the number says so.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "echo_comm/version.h"
#include "transport/gloo/gloo.hpp"

namespace echo_comm::core {

struct GlooModule {
  // Rises whenever something that crosses the border changes its layout.
  static constexpr uint64_t kVersion = uint64_t{ECHO_VERSION} << 32 | 1;

  uint64_t version = kVersion;
  // Both throw Error. One C++ runtime on both sides, so exceptions cross.
  void (*create)(const GlooOptions& options, std::unique_ptr<Transport>* transport) = nullptr;
  void (*create_in_process)(int size, int64_t slot_bytes, std::chrono::milliseconds timeout,
                            std::vector<std::unique_ptr<Transport>>* transports) = nullptr;
};

inline constexpr const char* kGlooModuleFile = "libecho_comm_gloo.so";
inline constexpr const char* kGlooModuleEntry = "echo_comm_gloo_module";

}  // namespace echo_comm::core
