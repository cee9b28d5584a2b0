// Other programs, run to their end.
#pragma once

#include <string>
#include <vector>

namespace echo_comm::tools {

// Runs the program, found by PATH, with this process's output; its input is `input`. Gives its exit status, 128 +
// signal when a signal ended it, 127 when it is not there. It is told to end when this process dies. Throws
// std::system_error when it cannot be started at all.
int run_program(const std::vector<std::string>& command, const std::string& input = "");

// The file of this program.
std::string own_path();

}  // namespace echo_comm::tools
