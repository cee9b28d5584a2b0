// echo-perf inside the project's network lab: the tool starts the lab, and the lab starts the tool once on every host.
#pragma once

#include "echo_perf/options.hpp"

namespace echo_comm::tools {

inline constexpr int kExitSkipped = 77;  // the lab cannot run here

// Gives the exit status. Throws UsageError.
int run_in_netlab(const Options& options);

}  // namespace echo_comm::tools
