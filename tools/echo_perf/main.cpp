// echo-perf: how fast an all-reduce with codes is, next to the exact one, and whether it is right.
//
//   options    the command line
//   ranks      starts the ranks (processes, or threads of one process) and watches them
//   measure    what a rank does: verify.cpp checks results, measure.cpp takes times
//   results    what was measured, in memory that all ranks share
//   report     table.cpp, json.cpp, csv.cpp: what the reader gets
//   codec_*    the subcommand `codec`, see codec_main.hpp
//
// Exit status: 0 all results right; 1 an element was wrong or ranks diverged, or a rank failed; 2 bad usage.
#include <exception>
#include <optional>
#include <string_view>

#include "common/command_line.hpp"
#include "echo_perf/codec_main.hpp"
#include "echo_perf/options.hpp"
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
  std::optional<OutputFile> json = open_if(options.json);
  std::optional<OutputFile> csv = open_if(options.csv);

  const Environment environment = environment_of(options);
  print_header(options, environment);
  const auto print = [options = &options](const Row& row) { print_row(*options, row); };
  const JobResult job = run_job(options, print);
  const Summary summary(job.rows, options);
  if (job.failures.empty()) print_footer(options, summary);

  if (json) json->write(json_of(options, environment, job.rows));
  if (csv) csv->write(csv_of(options, environment, job.rows));
  flush_stdout();
  for (const std::string& failure : job.failures) complain("echo-perf", failure);
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
