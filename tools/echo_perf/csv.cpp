#include <sstream>

#include "echo_perf/report.hpp"

namespace echo_comm::tools {
namespace {

// A field with a comma, a quote or a line break is quoted, quotes are doubled (RFC 4180).
std::string field(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

constexpr const char* kMeasured =
    "time_us,p90_us,p99_us,min_us,max_us,algbw,busbw,vs_exact,vs_gloo,vs_stream,ratio,rel_l2,wrong,diverged";

// What was not measured is left empty.
void add_measurement(std::ostream& out, const Options& options, const Row& row, Place place) {
  const Measurement& measured = row.places[place];
  const Times& time = measured.time();
  out << ',' << time.p50 << ',' << time.p90 << ',' << time.p99 << ',' << time.min << ',' << time.max << ','
      << algbw(row, place) << ',' << busbw(options, row, place) << ',';
  for (const Contender baseline : {kExact, kGloo, kStream}) {
    if (options.has(baseline)) out << measured.vs[baseline];
    out << ',';
  }
  if (!options.baselines.empty()) out << measured.vs[options.baselines.front()];
  out << ',';
  if (options.check)
    out << measured.rel_l2 << ',' << measured.wrong << ',' << measured.diverged;
  else
    out << ",,";
}

std::string prefixed(const std::string& prefix, const std::string& columns) {
  std::string result;
  std::istringstream in(columns);
  for (std::string name; std::getline(in, name, ',');) {
    result += ',';
    result += prefix;
    result += name;
  }
  return result;
}

}  // namespace

// Every row carries its environment, so that rows of different runs can be put into one file.
std::string csv_of(const Options& options, const Environment& environment, const std::vector<Row>& rows) {
  std::ostringstream out;
  out.precision(9);
  out << "schema,time,version,library_version,compiler,build_type,system,cpu,cores,transport,collective,ranks,codec,"
         "feedback,baseline,algorithm,path,iters,bytes,count,type,redop,payload_bytes,interface_bytes"
      << prefixed("", kMeasured) << prefixed("in_place_", kMeasured) << "\n";
  for (const Row& row : rows) {
    const BuildFacts& build = environment.build;
    const HostFacts& host = environment.host;
    out << kSchema << ',' << environment.time << ',' << build.version << ',' << build.library << ','
        << field(build.compiler) << ',' << field(build.build_type) << ',' << field(host.system) << ','
        << field(host.cpu) << ',' << host.cores << ',' << options.transport << ',' << options.collective << ','
        << options.ranks << ',' << options.codec << ',' << options.feedback_wanted << ',' << field(options.baseline)
        << ',' << row.path.algorithm_word() << ',' << row.path.kind_word() << ',' << options.iters << ',' << row.bytes
        << ',' << row.count << ',' << options.datatype << ',' << options.redop << ',' << row.payload_bytes << ',';
    if (row.interface_bytes >= 0) out << row.interface_bytes;
    for (const Place place : {kOutOfPlace, kInPlace}) add_measurement(out, options, row, place);
    out << "\n";
  }
  return out.str();
}

}  // namespace echo_comm::tools
