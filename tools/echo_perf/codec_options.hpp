// The command line of echo-perf codec.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "echo_perf/codec_case.hpp"

namespace echo_comm::tools {

struct CodecOptions {
  std::vector<CodecCase> cases;
  double seconds = 0.3;  // that a case is timed
  std::string json;      // file, "": none
};

// Gives an exit code in place of options when the program is to end at once. Throws UsageError.
struct CodecParsed {
  CodecOptions options;
  std::optional<int> exit_code;
};
CodecParsed parse_codec_options(int argc, const char* const* argv);

}  // namespace echo_comm::tools
