// Starts the ranks, hands their rows on as they come, and says what happened to those that failed.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "echo_perf/options.hpp"
#include "echo_perf/results.hpp"

namespace echo_comm::tools {

struct JobResult {
  std::string table;  // of choices, "" when the built-in rules alone count
  std::vector<Row> rows;
  std::vector<std::string> failures;  // one line each; the rank that was killed first; empty: all ranks passed
};

// Called in this process, in order: the table of choices, then the sizes.
struct Listener {
  std::function<void(const std::string& table)> on_table;
  std::function<void(const Row& row)> on_row;
};

// Starts all ranks; or, with --rank, is one of them.
JobResult run_job(const Options& options, const Listener& listener);

}  // namespace echo_comm::tools
