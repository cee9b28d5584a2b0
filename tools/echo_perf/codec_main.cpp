#include "echo_perf/codec_main.hpp"

#include "common/command_line.hpp"
#include "echo_perf/codec_measure.hpp"
#include "echo_perf/codec_options.hpp"
#include "echo_perf/codec_report.hpp"

namespace echo_comm::tools {

int run_codec(int argc, const char* const* argv) {
  const auto [options, exit_code] = parse_codec_options(argc, argv);
  if (exit_code) return *exit_code;
  std::optional<OutputFile> json;
  if (!options.json.empty()) json.emplace(options.json);

  const Environment environment = environment_of(options);
  print_header(options, environment);
  std::vector<CodecRow> rows;
  std::uint64_t wrong = 0;
  for (const CodecCase& what : options.cases) {
    rows.push_back(measure_codec(what, options.seconds));
    print_row(rows.back());
    wrong += rows.back().wrong;
  }
  print_footer(wrong);
  if (json) json->write(json_of(options, environment, rows));
  flush_stdout();
  return wrong == 0 ? kExitOk : kExitFailed;
}

}  // namespace echo_comm::tools
