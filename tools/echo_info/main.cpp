// echo-info: what this Echo is, what this host offers, and with --doctor whether the two work together.
//
// Exit status: 0 ok; 1 a check failed; 2 bad usage.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <optional>

#include "common/command_line.hpp"
#include "echo_comm/echo.h"
#include "echo_info/doctor.hpp"
#include "echo_info/report.hpp"

namespace echo_comm::tools {
namespace {

int run(int argc, const char* const* argv) {
  bool with_doctor = false;
  std::string json;
  CLI::App app("Tells what this Echo is and what this host offers.", "echo-info");
  app.set_version_flag("--version", std::string("echo-info ") + ECHO_VERSION_STRING);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::Throw);
  app.add_flag("--doctor", with_doctor, "check that Echo works here: real ranks, real sums");
  app.add_option("--json", json, "write JSON to this file; -: to standard output, in place of the text")
      ->type_name("FILE");
  if (const std::optional<int> exit_code = parse(app, argc, argv)) return *exit_code;

  std::optional<OutputFile> file;
  if (!json.empty() && json != "-") file.emplace(json);
  std::vector<Check> checks;
  if (with_doctor) checks = run_doctor();
  const std::vector<Check>* doctor = with_doctor ? &checks : nullptr;

  const Info info = collect_info();
  std::fputs((json == "-" ? json_of(info, doctor) : text_of(info, doctor)).c_str(), stdout);
  if (file) file->write(json_of(info, doctor));
  flush_stdout();
  return std::ranges::all_of(checks, [](const Check& done) { return done.ok(); }) ? kExitOk : kExitFailed;
}

}  // namespace
}  // namespace echo_comm::tools

int main(int argc, char** argv) {
  using namespace echo_comm::tools;
  try {
    return run(argc, argv);
  } catch (const UsageError& error) {
    complain("echo-info", error.what());
    return kExitUsage;
  } catch (const std::exception& error) {
    complain("echo-info", error.what());
    return kExitFailed;
  }
}
