// What the reader of echo-perf codec gets: a table on stdout while it is measured, a JSON file at the end.
#pragma once

#include <string>
#include <vector>

#include "echo_perf/codec_measure.hpp"
#include "echo_perf/codec_options.hpp"
#include "echo_perf/report.hpp"

namespace echo_comm::tools {

// Version of the JSON form; grows when a field changes its meaning or goes.
inline constexpr int kCodecSchema = 1;

Environment environment_of(const CodecOptions& options);

void print_header(const CodecOptions& options, const Environment& environment);
void print_row(const CodecRow& row);
void print_footer(std::uint64_t wrong);

std::string json_of(const CodecOptions& options, const Environment& environment, const std::vector<CodecRow>& rows);

}  // namespace echo_comm::tools
