#include "echo_perf/options.hpp"

#include <algorithm>

#include "common/command_line.hpp"
#include "common/element.hpp"
#include "common/host.hpp"
#include "echo_perf/words.hpp"

namespace echo_comm::tools {
namespace {

const Words<echo_dtype_t> kTypes = {{"float", ECHO_FLOAT32}, {"half", ECHO_FLOAT16}, {"bfloat16", ECHO_BFLOAT16}};
const Words<echo_op_t> kOps = {{"sum", ECHO_SUM}, {"avg", ECHO_AVG}};
const Words<TransportKind> kTransports = {{"shm", TransportKind::kShm}, {"inproc", TransportKind::kInproc}};
const Words<int> kCodecs = {{"q3", 3}, {"q4", 4}, {"q5", 5}, {"q6", 6}, {"q8", 8}, {"exact", ECHO_BITS_EXACT}};
const Words<bool> kBaselines = {{"exact", true}, {"none", false}};
const Words<bool> kFeedbacks = {{"on", true}, {"none", false}};
const Words<echo_algorithm_t> kAlgorithms = {
    {"auto", ECHO_ALGORITHM_AUTO}, {"one-shot", ECHO_ONE_SHOT}, {"two-shot", ECHO_TWO_SHOT}};
const Words<bool> kCollectives = {{"all_reduce", true}};

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

// A job that does not fit would be ended by the kernel in the middle of it.
void check_memory(const Options& options) {
  const auto ranks = static_cast<double>(options.ranks);
  const double count = static_cast<double>(options.largest()) / static_cast<double>(element_size(options.dtype));
  double needed = 2 * ranks * static_cast<double>(options.largest());
  if (options.feedback) needed += 4 * count * (ranks + 1);
  const int64_t available = memory_for_a_job(host_facts());
  if (needed > static_cast<double>(available)) {
    throw UsageError(std::to_string(options.ranks) + " ranks with " +
                     in_words(static_cast<int64_t>(options.largest())) + " need " +
                     in_words(static_cast<int64_t>(needed)) + " of memory, " + in_words(available) +
                     " are available; take a smaller --maxbytes or fewer --ranks");
  }
}

}  // namespace

Parsed parse_options(int argc, const char* const* argv) {
  Options options;
  Steps steps;
  int check = 1;
  std::string baseline = "exact";
  std::string feedback;

  CLI::App app("Measures Echo's collectives in the form of nccl-tests, next to Echo's exact path.", "echo-perf");
  app.set_version_flag("--version", std::string("echo-perf ") + ECHO_VERSION_STRING);
  app.footer("echo-perf codec ... measures the codec alone, see echo-perf codec --help");
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::Throw);
  add_word(app, "--collective", options.collective, kCollectives, "what to measure");
  const CLI::AsSizeValue size(false);  // 4K is 4096
  auto* minbytes = app.add_option("-b,--minbytes", steps.minbytes, "smallest size of the logical tensor (4K, 1M, 1G)");
  auto* maxbytes = app.add_option("-e,--maxbytes", steps.maxbytes, "largest size");
  minbytes->transform(size)->type_name("BYTES")->default_str("4K");
  maxbytes->transform(size)->type_name("BYTES")->default_str("64M");
  auto* factor = app.add_option("-f,--stepfactor", steps.factor, "multiply the size by this; 1: only the smallest");
  factor->check(CLI::Range(std::uint64_t{1}, kMostBytes))->type_name("N")->capture_default_str();
  app.add_option("-i,--stepbytes", steps.bytes, "add this to the size instead")
      ->transform(size)
      ->type_name("BYTES")
      ->excludes(factor);
  app.add_option("-n,--iters", options.iters, "timed iterations")
      ->check(CLI::Range(1, 100000))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("-w,--warmup_iters", options.warmup_iters, "iterations before the timed ones")
      ->check(CLI::Range(0, 100000))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("-c,--check", check, "check the results; 0: only time")
      ->check(CLI::Range(0, 1000000))
      ->type_name("N")
      ->capture_default_str();
  add_word(app, "-d,--datatype", options.datatype, kTypes, "element type");
  add_word(app, "-o,--op", options.redop, kOps, "reduction");
  app.add_option("--ranks", options.ranks, "ranks on this host, started by the tool")
      ->check(CLI::Range(1, 64))
      ->type_name("N")
      ->capture_default_str();
  add_word(app, "--transport", options.transport, kTransports, "shm: ranks are processes; inproc: threads");
  add_word(app, "--codec", options.codec, kCodecs, "what travels");
  add_word(app, "--baseline", baseline, kBaselines, "what the codec is compared to, in turn with it");
  add_word(app, "--feedback", feedback, kFeedbacks, "error feedback")->default_str("on; none with --codec exact");
  add_word(app, "--algorithm", options.algorithm_wanted, kAlgorithms, "algorithm of the codec's calls");
  app.add_option("--timeout", options.timeout_s, "longest wait of a rank for the others")
      ->check(CLI::Range(1, 86400))
      ->type_name("SECONDS")
      ->capture_default_str();
  app.add_option("-J,--json", options.json, "write the results to this file as JSON")->type_name("FILE");
  app.add_option("--csv", options.csv, "write the results to this file as CSV")->type_name("FILE");

  if (const std::optional<int> exit_code = parse(app, argc, argv)) return {options, exit_code};

  options.check = check != 0;
  options.dtype = meaning(kTypes, options.datatype);
  options.op = meaning(kOps, options.redop);
  options.kind = meaning(kTransports, options.transport);
  options.bits = meaning(kCodecs, options.codec);
  options.baseline = meaning(kBaselines, baseline);
  options.feedback = feedback.empty() ? options.bits != ECHO_BITS_EXACT : meaning(kFeedbacks, feedback);
  options.algorithm = meaning(kAlgorithms, options.algorithm_wanted);
  if (options.bits == ECHO_BITS_EXACT && options.algorithm == ECHO_ONE_SHOT) {
    throw UsageError("--algorithm one-shot needs a codec; the exact path is always two-shot");
  }
  if (maxbytes->count() == 0) steps.maxbytes = std::max(steps.maxbytes, steps.minbytes);
  if (minbytes->count() == 0) steps.minbytes = std::min(steps.maxbytes, steps.minbytes);
  options.sizes = steps.sizes(element_size(options.dtype));
  check_memory(options);
  return {options, std::nullopt};
}

}  // namespace echo_comm::tools
