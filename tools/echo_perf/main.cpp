// echo-perf: how fast a collective with codes is, next to baselines in the same run, and whether it is right.
//
//   options         the command line; check_options: what it must not say
//   ranks           starts the ranks (processes, or threads of one process) and watches them, or is one of them
//   netlab          the same in the network lab
//   measure         what a rank does: verify.cpp checks results, measure.cpp takes times
//   rival           baselines that are not Echo: gloo_rival.cpp, stream_rival.cpp
//   results         what was measured
//   report          table.cpp, json.cpp, csv.cpp, plot.cpp: what the reader gets
//   codec_*         the subcommand `codec`, see codec_main.hpp
//
// Exit status: 0 all results right; 1 an element was wrong or ranks diverged, or a rank failed; 2 bad usage; 77 the
// network lab cannot run here.
#include <exception>
#include <optional>
#include <string_view>

#include "common/command_line.hpp"
#include "echo_perf/codec_main.hpp"
#include "echo_perf/netlab.hpp"
#include "echo_perf/options.hpp"
#include "echo_perf/plot.hpp"
#include "echo_perf/ranks.hpp"
#include "echo_perf/report.hpp"

namespace echo_comm::tools {
namespace {

std::optional<OutputFile> open_if(const std::string& path) {
  if (path.empty()) return std::nullopt;
  return std::optional<OutputFile>(path);
}

int run(int argc, const char* const* argv) {
  const auto [options, exit_code] = parse_options(argc, argv);
  if (exit_code) return *exit_code;
  if (options.lab) return run_in_netlab(options);
  const bool tells = options.rank <= 0;  // of ranks that others started, the first
  std::optional<OutputFile> json = tells ? open_if(options.json) : std::nullopt;
  std::optional<OutputFile> csv = tells ? open_if(options.csv) : std::nullopt;
  if (tells && !options.plot.empty()) check_plot();

  const Environment environment = environment_of(options);
  Listener listener{[](const std::string& /*table*/) {}, [](const Row& /*row*/) {}};
  if (tells) {
    print_header(options, environment);
    listener = {print_table, [options = &options](const Row& row) { print_row(*options, row); }};
  }
  const JobResult job = run_job(options, listener);
  if (tells && job.failures.empty()) print_footer(options, job.rows);

  const std::string report = json_of(options, environment, job.table, job.rows);
  if (json) json->write(report);
  if (csv) csv->write(csv_of(options, environment, job.rows));
  flush_stdout();
  for (const std::string& failure : job.failures) complain("echo-perf", failure);
  if (tells && !options.plot.empty() && job.failures.empty()) plot(options.plot, report);
  const Summary summary(job.rows, options);
  return job.failures.empty() && summary.wrong == 0 && summary.diverged == 0 ? kExitOk : kExitFailed;
}

}  // namespace
}  // namespace echo_comm::tools

int main(int argc, char** argv) {
  using namespace echo_comm::tools;
  const bool codec = argc > 1 && std::string_view(argv[1]) == "codec";
  const char* tool = codec ? "echo-perf codec" : "echo-perf";
  try {
    return codec ? run_codec(argc - 1, argv + 1) : run(argc, argv);
  } catch (const UsageError& error) {
    complain(tool, error.what());
    return kExitUsage;
  } catch (const std::exception& error) {
    complain(tool, error.what());
    return kExitFailed;
  }
}
