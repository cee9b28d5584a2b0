// What the flags must not say together, and what this host must have for them.
#pragma once

#include "echo_perf/options.hpp"

namespace echo_comm::tools {

// Which flags were given at all.
struct Given {
  bool op = false;
  bool ranks = false;
  bool size = false;
  bool segment = false;
  bool depth = false;
};

// Throw UsageError with the flag and what is allowed.
void check_together(const Options& options, const Given& given);
void check_here(const Options& options);

}  // namespace echo_comm::tools
