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

std::string lines_as_comment(const std::string& text) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    result += "#   " + text.substr(at, end - at) + "\n";
    at = end + 1;
  }
  return result;
}

std::string ranks_text(const Options& options) {
  if (options.kind == TransportKind::kInproc) return "threads of one process";
  if (options.rank >= 0) return "this is rank " + std::to_string(options.rank);
  return "processes";
}

void add_baseline_notes(const Options& options, std::vector<std::string>& notes) {
  notes.emplace_back(
      "time is the median over iterations of the slowest rank's time. Echo and the baselines take turns, one call each "
      "a "
      "round; a ratio is the median over rounds of the baseline's time divided by Echo's in the same round, above 1 "
      "Echo "
      "wins");
  if (options.has(kExact)) notes.emplace_back("baseline exact: Echo's exact path on the same communicator");
  if (options.has(kGloo)) {
    const std::string where = options.interface.empty() ? "lo" : options.interface;
    std::string note = "baseline gloo: gloo::allreduce, ring, over TCP on " + where;
    note += ", values are fp32";
    if (options.dtype != ECHO_FLOAT32)
      note += ": the same number of elements, so twice the bytes of " + options.datatype;
    notes.push_back(note);
  }
  if (options.has(kStream)) {
    notes.emplace_back(
        "baseline stream: one TCP stream from rank 0 to rank 1 of as many bytes as rank 0 sends on the exact path");
  }
}

}  // namespace

Environment environment_of(const Options& options) {
  Environment environment{build_facts(), host_facts(), utc_now(), {}};
  environment.notes.emplace_back(
      "algbw and busbw count bytes of the logical tensor, so they may exceed what the link carries; wire_bytes is what "
      "one rank sends in one call");
  add_baseline_notes(options, environment.notes);
  if (!options.interface.empty()) {
    environment.notes.push_back("interface_bytes: what " + options.interface +
                                " of rank 0 sent per call, headers and all other traffic of it included" +
                                (options.interface == "lo" ? "; that is the traffic of all ranks" : ""));
  }
  if (options.rank < 0 && options.ranks > environment.host.cores) {
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
              options.ranks, ranks_text(options).c_str(), environment.host.cores, environment.host.cpu.c_str());
  std::printf("# codec %s, feedback %s, algorithm %s, baseline %s\n", options.codec.c_str(),
              options.feedback_wanted.c_str(), options.algorithm_wanted.c_str(), options.baseline.c_str());
  std::printf("# %d iterations after %d for warm-up, check %s\n", options.iters, options.warmup_iters,
              options.check ? "on" : "off");
  for (const std::string& note : environment.notes) std::printf("# %s\n", note.c_str());
  const std::size_t ratios = std::max<std::size_t>(options.baselines.size(), 1);
  const int width = 10 + 8 + 8 + 12 + static_cast<int>(9 * ratios) + 10 + 7 + 10;
  std::printf("#\n#%51s%-*s%s\n", "", width, "out of place", "in place");
  const auto print_titles = [&](bool first) {
    for (int place = 0; place < kPlaces; ++place) {
      std::printf("%10s %7s %7s %11s", first ? "time" : "(us)", first ? "algbw" : "(GB/s)", first ? "busbw" : "(GB/s)",
                  first ? "wire_bytes" : "(B)");
      for (std::size_t i = 0; i < ratios; ++i) {
        const std::string name = options.baselines.empty() ? "" : word_for(kBaselines, options.baselines[i]);
        std::printf(" %8s", first ? "ratio" : name.c_str());
      }
      std::printf(" %9s %6s %9s%s", first ? "rel_l2" : "", first ? "#wrong" : "", first ? "#diverged" : "",
                  place == 0 ? "  |" : "\n");
    }
  };
  std::printf("#%11s %12s %9s %6s  |", "size", "count", "type", "redop");
  print_titles(true);
  std::printf("#%11s %12s %9s %6s  |", "(B)", "(elements)", "", "");
  print_titles(false);
  std::fflush(stdout);
}

void print_table(const std::string& table) {
  if (table.empty()) return;
  std::printf("# table of choices:\n%s", lines_as_comment(table).c_str());
  std::fflush(stdout);
}

namespace {

void print_percentiles(const Options& options, const Row& row, Place place) {
  std::vector<Contender> contenders = {kEcho};
  contenders.insert(contenders.end(), options.baselines.begin(), options.baselines.end());
  for (const Contender contender : contenders) {
    const Times& times = row.places[place].times[contender];
    const std::string name = contender == kEcho ? "echo" : word_for(kBaselines, contender);
    std::printf("#   %-12s %-6s  min %s  p50 %s  p90 %s  p99 %s us\n",
                place == kOutOfPlace ? "out of place" : "in place", name.c_str(), time_text(times.min).c_str(),
                time_text(times.p50).c_str(), time_text(times.p90).c_str(), time_text(times.p99).c_str());
  }
}

void print_path(const Options& options, const Row& row) {
  const PathFacts& path = row.path;
  std::printf("#   path %s, algorithm %s, %d bits, segments of %lld values, depth %d: %s\n", path.kind_word(),
              path.algorithm_word(), path.bits, static_cast<long long>(path.segment_values), path.depth,
              path.reason.data());
  if (row.interface_bytes >= 0) {
    std::printf("#   %s sent %lld bytes a call\n", options.interface.c_str(),
                static_cast<long long>(row.interface_bytes));
  }
  if (row.places[kOutOfPlace].exact_efficiency > 0) {
    std::printf("#   exact path: %.0f %% of one TCP stream's speed\n", 100 * row.places[kOutOfPlace].exact_efficiency);
  }
}

}  // namespace

void print_row(const Options& options, const Row& row) {
  std::printf("%12llu %12llu %9s %6s  |", static_cast<unsigned long long>(row.bytes),
              static_cast<unsigned long long>(row.count), options.datatype.c_str(), options.redop.c_str());
  const auto checked = [&](const std::string& text) { return options.check ? text : std::string("N/A"); };
  for (const Place place : {kOutOfPlace, kInPlace}) {
    const Measurement& measured = row.places[place];
    std::printf("%10s %7.3f %7.3f %11llu", time_text(measured.time().p50).c_str(), algbw(row, place),
                busbw(options, row, place), static_cast<unsigned long long>(row.payload_bytes));
    if (options.baselines.empty()) std::printf(" %8s", "N/A");
    for (const Contender baseline : options.baselines) std::printf(" %8.2f", measured.vs[baseline]);
    std::printf(" %9s %6s %9s%s", checked(number("%.2e", measured.rel_l2)).c_str(),
                checked(std::to_string(measured.wrong)).c_str(), checked(std::to_string(measured.diverged)).c_str(),
                place == kOutOfPlace ? "  |" : "\n");
  }
  if (options.verbose) print_path(options, row);
  for (const Place place : {kOutOfPlace, kInPlace}) {
    if (options.percentiles) print_percentiles(options, row, place);
  }
  std::fflush(stdout);
}

void print_footer(const Options& options, const std::vector<Row>& rows) {
  const Summary summary(rows, options);
  if (options.check) {
    const bool ok = summary.wrong == 0 && summary.diverged == 0;
    std::printf("# wrong: %llu, diverged: %llu  %s\n", static_cast<unsigned long long>(summary.wrong),
                static_cast<unsigned long long>(summary.diverged), ok ? "OK" : "FAILED");
  } else {
    std::printf("# wrong, diverged: not checked\n");
  }
  std::printf("# average busbw: %.3f GB/s\n", summary.average_busbw);
  if (options.has(kExact)) {
    std::printf("# break-even size: %s\n", summary.break_even != 0
                                               ? (std::to_string(summary.break_even) + " bytes").c_str()
                                               : "none of those measured");
  }
}

}  // namespace echo_comm::tools
