#include "echo_perf/options.hpp"

#include <algorithm>
#include <cstdlib>

#include "common/command_line.hpp"
#include "common/element.hpp"
#include "echo_perf/check_options.hpp"
#include "echo_perf/flags.hpp"

namespace echo_comm::tools {
namespace {

constexpr std::size_t kMostSizes = 4096;
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 40;

// The sizes to run, each cut to whole elements; neighbours that become equal are one.
struct Steps {
  std::uint64_t minbytes = 4 << 10;
  std::uint64_t maxbytes = 64 << 20;
  std::uint64_t factor = 4;
  std::uint64_t bytes = 0;  // 0: multiply by factor

  [[nodiscard]] std::vector<std::uint64_t> sizes(std::uint64_t element) const {
    if (minbytes < element) throw UsageError("--minbytes is less than one element");
    if (maxbytes > kMostBytes) throw UsageError("--maxbytes is more than 1T");
    if (minbytes > maxbytes) throw UsageError("--minbytes is more than --maxbytes");
    std::vector<std::uint64_t> sizes;
    for (std::uint64_t size = minbytes; size <= maxbytes;) {
      const std::uint64_t whole = size / element * element;
      if (sizes.empty() || sizes.back() != whole) sizes.push_back(whole);
      if (sizes.size() > kMostSizes) {
        throw UsageError("more than " + std::to_string(kMostSizes) + " sizes; take larger steps");
      }
      if (bytes == 0 && factor == 1) break;
      size = bytes != 0 ? size + std::min(bytes, kMostBytes) : size * std::min(factor, kMostBytes / size + 1);
    }
    return sizes;
  }
};

// The words and numbers of the command line that become something else.
struct Raw {
  Steps steps;
  int check = 1;
  std::string feedback;
  std::string netlab;
  std::string netlab_dir;
  std::int64_t segment = 0;
  int depth = 0;
  int size = 0;
  CLI::Option* minbytes = nullptr;
  CLI::Option* maxbytes = nullptr;
};

CLI::Option* add_whole(CLI::App& app, const std::string& flags, int& value, int low, int high,
                       const std::string& text) {
  return app.add_option(flags, value, text)->check(CLI::Range(low, high))->type_name("N")->capture_default_str();
}

void add_sizes(CLI::App& app, Options& options, Raw& raw) {
  const CLI::AsSizeValue size(false);  // 4K is 4096
  raw.minbytes =
      app.add_option("-b,--minbytes", raw.steps.minbytes, "smallest size of the logical tensor (4K, 1M, 1G)");
  raw.maxbytes = app.add_option("-e,--maxbytes", raw.steps.maxbytes, "largest size");
  raw.minbytes->transform(size)->type_name("BYTES")->default_str("4K");
  raw.maxbytes->transform(size)->type_name("BYTES")->default_str("64M");
  auto* factor = app.add_option("-f,--stepfactor", raw.steps.factor, "multiply the size by this; 1: only the smallest");
  factor->check(CLI::Range(std::uint64_t{1}, kMostBytes))->type_name("N")->capture_default_str();
  app.add_option("-i,--stepbytes", raw.steps.bytes, "add this to the size instead")
      ->transform(size)
      ->type_name("BYTES")
      ->excludes(factor);
  add_whole(app, "-n,--iters", options.iters, 1, 100000, "timed iterations");
  add_whole(app, "-w,--warmup_iters", options.warmup_iters, 0, 100000, "iterations before the timed ones");
  add_whole(app, "-c,--check", raw.check, 0, 1000000, "check the results; 0: only time");
}

std::string baselines_problem(const std::string& given) {
  if (given == "none") return "";
  const std::string problem =
      problem_of_list(given, [](const std::string& item) { return problem_of(kBaselines, item); });
  return problem.empty() ? problem : problem + ", or none alone";
}

void add_call(CLI::App& app, Options& options, Raw& raw) {
  add_word(app, "--collective", options.collective, kCollectives, "what to measure");
  add_word(app, "-d,--datatype", options.datatype, kTypes, "element type");
  add_word(app, "-o,--op", options.redop, kOps, "reduction");
  add_word(app, "--codec", options.codec, kCodecs, "what travels; auto: the table of choices decides")
      ->default_str("q4; auto with --table or --tune");
  add_word(app, "--feedback", raw.feedback, kFeedbacks, "how residuals are kept, none: no error feedback")
      ->default_str("auto; none with --codec exact and all_gather");
  add_word(app, "--algorithm", options.algorithm_wanted, kAlgorithms, "algorithm of the measured calls");
  app.add_option("--baseline", options.baseline,
                 "what Echo is compared to, in turn with it; one or more, comma between")
      ->check(baselines_problem)
      ->type_name(choices_of(kBaselines) + "|none")
      ->capture_default_str();
  auto* segment = app.add_option("--segment", raw.segment, "values of one segment, the unit of pipelining");
  segment->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40))->type_name("VALUES");
  auto* depth = add_whole(app, "--depth", raw.depth, 1, 7, "segments sent ahead")->default_str("");
  app.add_option("--table", options.table, "rows of the table of choices, or @FILE with them")
      ->type_name("ROWS|@FILE")
      ->excludes(segment)
      ->excludes(depth)
      ->excludes(app.add_flag("--tune", options.tune, "measure the table of choices at the start"));
}

void add_ranks(CLI::App& app, Options& options, Raw& raw) {
  add_whole(app, "--ranks", options.ranks, 1, 64, "ranks, started by the tool");
  add_word(app, "--transport", options.transport, kTransports, "inproc: ranks are threads; shm, gloo: processes")
      ->default_str("shm; gloo with --rank and --netlab");
  add_whole(app, "--rank", options.rank, 0, 63, "be this rank of --size, the others are started by somebody else")
      ->default_str("");
  add_whole(app, "--size", raw.size, 1, 64, "with --rank: number of ranks")->default_str("");
  app.add_option("--dir", options.directory, "with --rank: directory that all ranks share")->type_name("DIR");
  app.add_option("--iface", options.interface, "network interface to use, with gloo")->type_name("NAME");
  app.add_option("--netlab", raw.netlab, "run in the network lab with links of this rate, e.g. 1gbit,flows=2")
      ->type_name("RATE[,flows=N]");
  app.add_option("--netlab-dir", raw.netlab_dir, "folder of the lab; else ECHO_NETLAB, or where it was at build time")
      ->type_name("DIR");
  app.add_option("--timeout", options.timeout_s, "longest wait of a rank for the others")
      ->check(CLI::Range(1, 86400))
      ->type_name("SECONDS")
      ->capture_default_str();
}

void add_output(CLI::App& app, Options& options) {
  app.add_flag("--percentiles", options.percentiles, "print them for each size");
  app.add_flag("--verbose", options.verbose, "print for each size which path its calls took, and why");
  app.add_option("-J,--json", options.json, "write the results to this file as JSON")->type_name("FILE");
  app.add_option("--csv", options.csv, "write the results to this file as CSV")->type_name("FILE");
  app.add_option("--plot", options.plot, "draw the results into this file; needs Python with matplotlib")
      ->type_name("FILE.png");
}

// "1gbit,flows=2".
LabOptions lab_of(const Raw& raw) {
  const auto refuse = [&] {
    throw UsageError("--netlab " + raw.netlab + ": allowed: a rate such as 100mbit, 1gbit or none, then perhaps " +
                     ",flows=N with N from 0 to 64");
  };
  const std::vector<std::string> items = split(raw.netlab);
  LabOptions lab;
  lab.rate = items[0];
  std::size_t digits = 0;
  while (digits < lab.rate.size() &&
         (std::isdigit(static_cast<unsigned char>(lab.rate[digits])) || lab.rate[digits] == '.'))
    ++digits;
  const std::string unit = lab.rate.substr(digits);
  const bool rate = digits > 0 && (unit == "kbit" || unit == "mbit" || unit == "gbit");
  if ((!rate && lab.rate != "none") || items.size() > 2) refuse();
  if (items.size() == 2) {
    const std::string_view flows = items[1];
    const std::string_view key = "flows=";
    if (!flows.starts_with(key)) refuse();
    const std::optional<std::int64_t> number = number_of(flows.substr(key.size()));
    if (!number || *number < 0 || *number > 64) refuse();
    lab.flows = static_cast<int>(*number);
  }
  const char* variable = std::getenv("ECHO_NETLAB");
  lab.folder = !raw.netlab_dir.empty()                    ? raw.netlab_dir
               : variable != nullptr && *variable != '\0' ? variable
                                                          : ECHO_SOURCE_FOLDER "/testing/netlab";
  return lab;
}

// The flags once more for each rank in the lab: all but those that say where ranks are and where results go.
std::vector<std::string> repeated_flags(const CLI::App& app) {
  const std::vector<std::string> own = {"netlab", "netlab-dir", "ranks", "json", "plot", "transport"};
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() == 0 || option->get_lnames().empty()) continue;
    const std::string& name = option->get_lnames().front();
    if (std::ranges::find(own, name) != own.end()) continue;
    flags.push_back("--" + name);
    if (option->get_items_expected_max() == 0) continue;  // a flag
    for (const std::string& value : option->results()) flags.push_back(value);
  }
  return flags;
}

void translate(Options& options, const Raw& raw) {
  options.check = raw.check != 0;
  options.what = meaning(kCollectives, options.collective);
  options.dtype = meaning(kTypes, options.datatype);
  options.op = meaning(kOps, options.redop);
  if (options.what == ECHO_ALL_GATHER) options.redop = "none";
  options.kind = meaning(kTransports, options.transport);
  options.bits = meaning(kCodecs, options.codec);
  if (options.baseline != "none") options.baselines = meanings(kBaselines, options.baseline);
  const bool none = options.bits == ECHO_BITS_EXACT || options.what == ECHO_ALL_GATHER;
  options.feedback_wanted = !raw.feedback.empty() ? raw.feedback : none ? "none" : "auto";
  options.feedback = meaning(kFeedbacks, options.feedback_wanted);
  options.algorithm = meaning(kAlgorithms, options.algorithm_wanted);
  if (raw.segment != 0 || raw.depth != 0) {
    options.table = options.collective + " * coded";
    if (raw.segment != 0) options.table += " segment=" + std::to_string(raw.segment);
    if (raw.depth != 0) options.table += " depth=" + std::to_string(raw.depth);
  }
  if (raw.size != 0) options.ranks = raw.size;
}

}  // namespace

Parsed parse_options(int argc, const char* const* argv) {
  Options options;
  Raw raw;
  CLI::App app("Measures Echo's collectives in the form of nccl-tests, next to baselines in the same run.",
               "echo-perf");
  app.set_version_flag("--version", std::string("echo-perf ") + ECHO_VERSION_STRING);
  app.footer("echo-perf codec ... measures the codec alone, see echo-perf codec --help");
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::Throw);
  add_sizes(app, options, raw);
  add_call(app, options, raw);
  add_ranks(app, options, raw);
  add_output(app, options);
  if (const std::optional<int> exit_code = parse(app, argc, argv)) return {options, exit_code};

  const auto given = [&](const char* name) { return app.count(name) > 0; };
  if (!given("--transport") && (given("--rank") || given("--netlab"))) options.transport = "gloo";
  if (!given("--codec") && (given("--table") || given("--tune"))) options.codec = "auto";
  if (given("--netlab")) options.lab = lab_of(raw);
  if (given("--table") && options.table.empty()) throw UsageError("--table: it is empty; leave it out");
  const Given all{given("--op"), given("--ranks"), given("--size"), given("--segment"), given("--depth")};
  translate(options, raw);
  if (raw.maxbytes->count() == 0) raw.steps.maxbytes = std::max(raw.steps.maxbytes, raw.steps.minbytes);
  if (raw.minbytes->count() == 0) raw.steps.minbytes = std::min(raw.steps.maxbytes, raw.steps.minbytes);
  options.sizes = raw.steps.sizes(element_size(options.dtype));
  check_together(options, all);
  const bool started_here = options.kind == TransportKind::kGloo && options.rank < 0 && !options.lab;
  if (started_here && options.interface.empty()) options.interface = "lo";
  check_here(options);
  options.repeated = repeated_flags(app);
  return {options, std::nullopt};
}

}  // namespace echo_comm::tools
