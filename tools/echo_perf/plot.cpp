#include "echo_perf/plot.hpp"

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <vector>

#include "common/command_line.hpp"
#include "common/program.hpp"

namespace echo_comm::tools {
namespace {

constexpr int kNoMatplotlib = 3;  // exit status of the script

// Of the sources this was built from, or else of the installed package.
std::vector<std::string> script() {
  const char* chosen = std::getenv("ECHO_PYTHON");
  const std::string python = chosen != nullptr && *chosen != '\0' ? chosen : "python3";
  const std::string in_sources = ECHO_SOURCE_FOLDER "/python/echo_comm/plot_perf.py";
  if (std::filesystem::exists(in_sources)) return {python, "-B", in_sources};
  return {python, "-m", "echo_comm.plot_perf"};
}

}  // namespace

void check_plot() {
  std::vector<std::string> command = script();
  const std::string python = command[0];
  command.emplace_back("--check");
  const int status = run_program(command);
  if (status == 0) return;
  if (status == kNoMatplotlib)
    throw UsageError("--plot: " + python + " has no matplotlib; install it (python3-matplotlib, or pip install " +
                     "matplotlib), or set ECHO_PYTHON to a Python that has it");
  if (status == 127) throw UsageError("--plot: there is no " + python + "; install Python 3 or set ECHO_PYTHON");
  throw UsageError("--plot: the script plot_perf.py cannot be run by " + python +
                   "; install the Python package echo_comm or run in the sources");
}

void plot(const std::string& file, const std::string& json) {
  std::vector<std::string> command = script();
  command.push_back(file);
  if (run_program(command, json) != 0) throw std::runtime_error("--plot: '" + file + "' was not drawn, see above");
}

}  // namespace echo_comm::tools
