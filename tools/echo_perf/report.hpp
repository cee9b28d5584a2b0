// The three forms of a result: a table on stdout while it is measured, JSON and CSV files at the end.
#pragma once

#include <string>
#include <vector>

#include "common/build.hpp"
#include "common/host.hpp"
#include "echo_perf/options.hpp"
#include "echo_perf/results.hpp"

namespace echo_comm::tools {

// Version of the JSON and CSV forms; grows when a field changes its meaning or goes.
inline constexpr int kSchema = 2;

struct Environment {
  BuildFacts build;
  HostFacts host;
  std::string time;                // start, UTC
  std::vector<std::string> notes;  // what a reader must know to read the figures rightly
};

Environment environment_of(const Options& options);

void print_header(const Options& options, const Environment& environment);
// The table of choices in use, if it is not empty.
void print_table(const std::string& table);
void print_row(const Options& options, const Row& row);
void print_footer(const Options& options, const std::vector<Row>& rows);

std::string json_of(const Options& options, const Environment& environment, const std::string& table,
                    const std::vector<Row>& rows);
std::string csv_of(const Options& options, const Environment& environment, const std::vector<Row>& rows);

}  // namespace echo_comm::tools
