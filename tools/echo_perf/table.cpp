#include <cstdio>

#include "common/element.hpp"
#include "echo_perf/report.hpp"

namespace echo_comm::tools {
namespace {

std::string number(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

// A time with about five digits, as nccl-tests prints it.
std::string time_text(double us) { return number(us < 100 ? "%.2f" : us < 10000 ? "%.1f" : "%.0f", us); }

}  // namespace

Environment environment_of(const Options& options) {
  Environment environment{build_facts(), host_facts(), utc_now(), {}};
  environment.notes.emplace_back(
      "algbw and busbw count bytes of the logical tensor, so they may exceed what the link carries; wire_bytes is what "
      "one rank sends in one call");
  environment.notes.emplace_back(
      "time is the median over iterations of the slowest rank; ratio is the baseline's time divided by it, above 1 the "
      "codec wins");
  if (options.ranks > environment.host.cores) {
    environment.notes.push_back("WARNING: " + std::to_string(options.ranks) + " ranks on " +
                                std::to_string(environment.host.cores) +
                                " cores: ranks wait for each other's core, times mean nothing");
  }
  if (environment.build.build_type == "Debug") {
    environment.notes.emplace_back("WARNING: a Debug build, times mean nothing");
  }
  return environment;
}

void print_header(const Options& options, const Environment& environment) {
  const BuildFacts& build = environment.build;
  std::printf("# echo-perf %s, library %s, %s, %s\n", build.version.c_str(), build.library.c_str(),
              build.compiler.c_str(), build.build_type.c_str());
  std::printf("# %s over %s, %d ranks (%s), on %d cores of %s\n", options.collective.c_str(), options.transport.c_str(),
              options.ranks, options.kind == TransportKind::kShm ? "processes" : "threads of one process",
              environment.host.cores, environment.host.cpu.c_str());
  std::printf("# codec %s, feedback %s, algorithm %s, baseline %s\n", options.codec.c_str(),
              options.feedback ? "on" : "none", options.algorithm_wanted.c_str(),
              options.baseline ? "exact: Echo's exact path on the same communicator, in turn with the codec" : "none");
  std::printf("# %d iterations after %d for warm-up, check %s\n", options.iters, options.warmup_iters,
              options.check ? "on" : "off");
  for (const std::string& note : environment.notes) std::printf("# %s\n", note.c_str());
  std::printf("#\n#%51s%-90s%s\n", "", "out of place", "in place");
  const char* columns = "%10s %7s %7s %11s %6s %9s %6s %9s";
  std::printf("#%11s %12s %9s %6s  |", "size", "count", "type", "redop");
  for (int place = 0; place < kPlaces; ++place) {
    std::printf(columns, "time", "algbw", "busbw", "wire_bytes", "ratio", "rel_l2", "#wrong", "#diverged");
    std::printf(place == 0 ? "  |" : "\n");
  }
  std::printf("#%11s %12s %9s %6s  |", "(B)", "(elements)", "", "");
  for (int place = 0; place < kPlaces; ++place) {
    std::printf(columns, "(us)", "(GB/s)", "(GB/s)", "(B)", "", "", "", "");
    std::printf(place == 0 ? "  |" : "\n");
  }
  std::fflush(stdout);
}

void print_row(const Options& options, const Row& row) {
  std::printf("%12llu %12llu %9s %6s  |", static_cast<unsigned long long>(row.bytes),
              static_cast<unsigned long long>(row.count), options.datatype.c_str(), options.redop.c_str());
  for (const Place place : {kOutOfPlace, kInPlace}) {
    const Measurement& measured = row.places[place];
    const auto checked = [&](const std::string& text) { return options.check ? text : std::string("N/A"); };
    const std::string ratio = options.baseline ? number("%.2f", measured.ratio()) : "N/A";
    std::printf("%10s %7.3f %7.3f %11llu %6s %9s %6s %9s%s", time_text(measured.time.p50).c_str(), algbw(row, place),
                busbw(row, place, options.ranks), static_cast<unsigned long long>(row.payload_bytes), ratio.c_str(),
                checked(number("%.2e", measured.rel_l2)).c_str(), checked(std::to_string(measured.wrong)).c_str(),
                checked(std::to_string(measured.diverged)).c_str(), place == kOutOfPlace ? "  |" : "\n");
  }
  std::fflush(stdout);
}

void print_footer(const Options& options, const Summary& summary) {
  if (options.check) {
    const bool ok = summary.wrong == 0 && summary.diverged == 0;
    std::printf("# wrong: %llu, diverged: %llu  %s\n", static_cast<unsigned long long>(summary.wrong),
                static_cast<unsigned long long>(summary.diverged), ok ? "OK" : "FAILED");
  } else {
    std::printf("# wrong, diverged: not checked\n");
  }
  std::printf("# average busbw: %.3f GB/s\n", summary.average_busbw);
  if (options.baseline) {
    std::printf("# break-even size: %s\n", summary.break_even != 0
                                               ? (std::to_string(summary.break_even) + " bytes").c_str()
                                               : "none of those measured");
  }
}

}  // namespace echo_comm::tools
