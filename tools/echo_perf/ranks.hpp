// Starts the ranks, hands their rows on as they come, and says what happened to those that failed.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "echo_perf/options.hpp"
#include "echo_perf/results.hpp"

namespace echo_comm::tools {

struct JobResult {
  std::vector<Row> rows;
  std::vector<std::string> failures;  // one line each; the rank that was killed first; empty: all ranks passed
};

// on_row is called in this process, in order of the sizes.
JobResult run_job(const Options& options, const std::function<void(const Row& row)>& on_row);

}  // namespace echo_comm::tools
