// Checks that Echo works on this host by using it.
#pragma once

#include <string>
#include <vector>

namespace echo_comm::tools {

struct Check {
  std::string name;
  std::string problem;      // what is wrong and what to do about it; "" when all is well
  std::string detail = {};  // what was found, when all is well

  [[nodiscard]] bool ok() const { return problem.empty(); }
};

// Starts processes, so the caller must have one thread. Takes a few seconds at most.
std::vector<Check> run_doctor();

}  // namespace echo_comm::tools
