// A time limit as messages show it: "30 s", "250 ms".
#pragma once

#include <chrono>
#include <string>

#include "base/error.hpp"

namespace echo_comm::core {

inline std::string duration_text(std::chrono::milliseconds time) {
  return time.count() % 1000 == 0 ? text(time.count() / 1000, " s") : text(time.count(), " ms");
}

}  // namespace echo_comm::core
