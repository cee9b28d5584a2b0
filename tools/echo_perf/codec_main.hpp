// The subcommand `codec` of echo-perf: how fast the codec is, next to memcpy, and whether it is right.
//
//   codec_options    the command line
//   codec_case       what a row measures, the bytes it moves, the words for it
//   codec_measure    one row: checks it against the reference codec, takes times
//   codec_operands   tensors, payloads and residuals of a row
//   codec_workers    the threads
//   codec_report     table and JSON
#pragma once

namespace echo_comm::tools {

// argv[0] is the word `codec`. Gives the exit status: 1 when a byte was wrong. Throws UsageError, Exception.
int run_codec(int argc, const char* const* argv);

}  // namespace echo_comm::tools
