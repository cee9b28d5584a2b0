// Draws results by the project's Python script, plot_perf.py.
#pragma once

#include <string>

namespace echo_comm::tools {

// Throws UsageError with what is missing: Python, matplotlib or the script. To be called before the work is done.
void check_plot();

// Draws the results, as json_of() gives them, into a file. Throws std::runtime_error.
void plot(const std::string& file, const std::string& json);

}  // namespace echo_comm::tools
