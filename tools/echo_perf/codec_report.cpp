#include "echo_perf/codec_report.hpp"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace echo_comm::tools {

Environment environment_of(const CodecOptions& options) {
  Environment environment{build_facts(), host_facts(), utc_now(), {}};
  environment.notes.emplace_back(
      "gbps: 10^9 bytes of the tensor (values x size of the type) a second; ratio: median time by that of a memcpy of "
      "the tensor with the same threads, in turn, 1 is as fast as memcpy");
  environment.notes.emplace_back(
      "bytes/value: memory traffic, each byte that must be read or written counted once (reduce: residuals of sender "
      "and "
      "owner); roofline: the ratio that this "
      "traffic alone would have");
  environment.notes.emplace_back("wrong: bytes of the first and last 4096 groups that are not the reference codec's");
  const auto most = std::ranges::max_element(options.cases, {}, &CodecCase::threads);
  if (most->threads > environment.host.cores) {
    environment.notes.push_back("WARNING: " + std::to_string(most->threads) + " threads on " +
                                std::to_string(environment.host.cores) + " cores: their times mean nothing");
  }
  if (environment.build.build_type == "Debug") {
    environment.notes.emplace_back("WARNING: a Debug build, times mean nothing");
  }
  return environment;
}

void print_header(const CodecOptions& options, const Environment& environment) {
  const BuildFacts& build = environment.build;
  std::printf("# echo-perf codec %s, library %s, %s, %s\n", build.version.c_str(), build.library.c_str(),
              build.compiler.c_str(), build.build_type.c_str());
  std::printf("# %d cores of %s, %g s a row\n", environment.host.cores, environment.host.cpu.c_str(), options.seconds);
  for (const std::string& note : environment.notes) std::printf("# %s\n", note.c_str());
  std::printf("#\n#%7s %4s %8s %8s %5s %3s %5s %10s %7s %10s  |%9s %8s %8s %6s %8s %11s %6s\n", "stage", "bits",
              "rotation", "feedback", "ranks", "add", "type", "target", "threads", "values", "ns/value", "gbps",
              "memcpy", "ratio", "roofline", "bytes/value", "#wrong");
  std::printf("#%77s  |%9s %8s %8s\n", "", "", "(GB/s)", "(GB/s)");
  std::fflush(stdout);
}

void print_row(const CodecRow& row) {
  const CodecCase& what = row.what;
  std::printf("%8s %4d %8s %8s %5d %3s %5s %10s %7d %10lld  |%9.4f %8.3f %8.3f %6.2f %8.2f %11.4f %6llu\n",
              word_for(kStages, what.stage).c_str(), what.bits, word_for(kSwitches, what.rotation).c_str(),
              word_for(kStores, what.feedback).c_str(), what.ranks, word_for(kSwitches, what.add).c_str(),
              word_for(kCodecTypes, what.dtype).c_str(), what.target.c_str(), what.threads,
              static_cast<long long>(what.values), row.ns_per_value(), row.gbps(), row.memcpy_gbps(),
              row.memcpy_ratio(), row.footprint.roofline_ratio(), row.footprint.traffic(),
              static_cast<unsigned long long>(row.wrong));
  std::fflush(stdout);
}

void print_footer(std::uint64_t wrong) {
  std::printf("# wrong: %llu  %s\n", static_cast<unsigned long long>(wrong), wrong == 0 ? "OK" : "FAILED");
}

std::string json_of(const CodecOptions& options, const Environment& environment, const std::vector<CodecRow>& rows) {
  Json env = to_json(environment.build);
  env["time"] = environment.time;
  env["host"] = to_json(environment.host);
  env["options"] = {{"time_s", options.seconds}};
  env["notes"] = environment.notes;

  Json list = Json::array();
  for (const CodecRow& row : rows) {
    const CodecCase& what = row.what;
    list.push_back({{"stage", word_for(kStages, what.stage)},
                    {"bits", what.bits},
                    {"rotation", what.rotation},
                    {"feedback", word_for(kStores, what.feedback)},
                    {"type", word_for(kCodecTypes, what.dtype)},
                    {"target", what.target},
                    {"threads", what.threads},
                    {"values", what.values},
                    {"gbps", row.gbps()},
                    {"memcpy_ratio", row.memcpy_ratio()},
                    {"bytes_per_value", row.footprint.traffic()},
                    {"ranks", what.ranks},
                    {"add", what.add},
                    {"wrong", row.wrong},
                    {"roofline_ratio", row.footprint.roofline_ratio()},
                    {"memcpy_gbps", row.memcpy_gbps()},
                    {"ns_per_value", row.ns_per_value()}});
  }
  const Json report = {{"schema", kCodecSchema}, {"env", env}, {"rows", list}};
  return report.dump(2) + "\n";
}

}  // namespace echo_comm::tools
