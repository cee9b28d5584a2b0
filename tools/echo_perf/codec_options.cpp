#include "echo_perf/codec_options.hpp"

#include <algorithm>

#include "common/command_line.hpp"
#include "common/host.hpp"
#include "echo_perf/flags.hpp"

namespace echo_comm::tools {
namespace {

constexpr int kMostThreads = 256;
constexpr int kMostRanks = 64;
constexpr std::int64_t kMostValues = std::int64_t{1} << 40;

// The lists of the command line. Those of the first block choose stages and formats; each of the second block is
// combined with all that the first one chose.
struct Lists {
  std::string stages = "encode,reduce,decode";
  std::string bits = "4";
  std::string rotations = "on";
  std::string feedbacks = "int8";
  std::string ranks = "4";
  std::string adds = "off";

  std::string types = "bf16";
  std::string targets;
  std::string threads = "1";
  std::string values = "65536,33554432";  // in cache, out of cache
};

// The codecs of this processor, and all of them.
Words<std::string> target_words() {
  Words<std::string> words;
  for (int index = 0; const char* name = echo_codec_name(index); ++index) words.emplace_back(name, name);
  words.emplace_back("all", "");
  return words;
}

std::vector<std::string> targets_of(const std::string& list, const Words<std::string>& words) {
  std::vector<std::string> targets;
  for (const std::string& name : meanings(words, list)) {
    if (!name.empty()) targets.push_back(name);
    if (!name.empty()) continue;
    for (const auto& [target, meaning] : words) {
      if (!meaning.empty()) targets.push_back(target);
    }
  }
  return targets;
}

// What the project wants to know of its codec.
std::vector<CodecCase> default_kinds() {
  return {{.stage = Stage::kEncode, .rotation = false},
          {.stage = Stage::kEncode, .feedback = ECHO_STORE_INT8},
          {.stage = Stage::kEncode, .feedback = ECHO_STORE_FP32},
          {.stage = Stage::kDecode, .rotation = false},
          {.stage = Stage::kDecode},
          {.stage = Stage::kReduce, .feedback = ECHO_STORE_INT8, .ranks = 4}};
}

// `kind`, without what its stage does not have.
CodecCase normal(CodecCase kind) {
  if (kind.stage == Stage::kDecode) kind.feedback.reset();
  if (kind.stage != Stage::kDecode) kind.add = false;
  if (kind.stage != Stage::kReduce) kind.ranks = 1;
  return kind;
}

// For each of `cases` one with every value that `member` may have; equal ones once.
template <class T>
std::vector<CodecCase> each(const std::vector<CodecCase>& cases, T CodecCase::*member, const std::vector<T>& values) {
  std::vector<CodecCase> product;
  for (const CodecCase& one : cases) {
    for (const T& value : values) {
      CodecCase made = one;
      made.*member = value;
      made = normal(made);
      if (std::ranges::find(product, made) == product.end()) product.push_back(made);
    }
  }
  return product;
}

std::vector<int> small_numbers(const std::string& list) {
  std::vector<int> numbers;
  for (const std::int64_t number : numbers_of(list)) numbers.push_back(static_cast<int>(number));
  return numbers;
}

std::vector<CodecCase> chosen_kinds(const Lists& lists) {
  std::vector<CodecCase> kinds = each({CodecCase{}}, &CodecCase::stage, meanings(kStages, lists.stages));
  kinds = each(kinds, &CodecCase::rotation, meanings(kSwitches, lists.rotations));
  kinds = each(kinds, &CodecCase::bits, meanings(kCodecBits, lists.bits));
  kinds = each(kinds, &CodecCase::feedback, meanings(kStores, lists.feedbacks));
  kinds = each(kinds, &CodecCase::ranks, small_numbers(lists.ranks));
  return each(kinds, &CodecCase::add, meanings(kSwitches, lists.adds));
}

// The rows in the order of the table: targets of one kind next to each other, sizes apart.
std::vector<CodecCase> cases_of(const Lists& lists, const std::vector<CodecCase>& kinds,
                                const std::vector<std::string>& targets) {
  std::vector<CodecCase> cases;
  for (const std::int64_t values : numbers_of(lists.values)) {
    for (const int threads : small_numbers(lists.threads)) {
      for (const echo_dtype_t dtype : meanings(kCodecTypes, lists.types)) {
        std::vector<CodecCase> made = each(kinds, &CodecCase::values, {values});
        made = each(made, &CodecCase::threads, {threads});
        made = each(made, &CodecCase::dtype, {dtype});
        made = each(made, &CodecCase::target, targets);
        cases.insert(cases.end(), made.begin(), made.end());
      }
    }
  }
  return cases;
}

// A case that does not fit would be ended by the kernel in the middle of it.
void check_memory(const std::vector<CodecCase>& cases) {
  const std::int64_t available = memory_for_a_job(host_facts());
  for (const CodecCase& one : cases) {
    const std::int64_t needed = Footprint(one).memory();
    if (needed <= available) continue;
    throw UsageError(word_for(kStages, one.stage) + " of " + std::to_string(one.values) + " values needs " +
                     in_words(needed) + " of memory, " + in_words(available) + " are available; take fewer --values");
  }
}

}  // namespace

CodecParsed parse_codec_options(int argc, const char* const* argv) {
  CodecOptions options;
  Lists lists;
  const Words<std::string> targets = target_words();

  CLI::App app(
      "Measures the codec alone, through the C interface, in turn with a memcpy of the tensor. Options take comma "
      "lists "
      "and every combination is a row. Without --stage, --bits, --rotation, --feedback, --ranks and --add the rows are "
      "those that the project has targets for.\n"
      "Traffic counts each byte that the stage must read or write once: tensor, codes, scales, residuals (read and "
      "written).",
      "echo-perf codec");
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::Throw);
  const std::vector<CLI::Option*> kind_options = {
      add_words(app, "--stage", lists.stages, kStages, "what to measure"),
      add_words(app, "--bits", lists.bits, kCodecBits, "bits of a code"),
      add_words(app, "--rotation", lists.rotations, kSwitches, "rotate groups"),
      add_words(app, "--feedback", lists.feedbacks, kStores, "how residuals are kept; decode has none"),
      add_numbers(app, "--ranks", lists.ranks, 2, kMostRanks, "ranks whose values reduce sums, the own one included"),
      add_words(app, "--add", lists.adds, kSwitches, "decode adds to the tensor")};
  add_words(app, "-d,--datatype", lists.types, kCodecTypes, "element type");
  add_words(app, "--target", lists.targets, targets, "codecs")->default_str("the one in use");
  add_numbers(app, "--threads", lists.threads, 1, kMostThreads, "threads that share a call");
  add_numbers(app, "--values", lists.values, 1, kMostValues, "elements of the tensor (65536, 32M)");
  app.add_option("--time", options.seconds, "how long a row is timed")
      ->check(CLI::Range(0.0, 3600.0))
      ->type_name("SECONDS")
      ->capture_default_str();
  app.add_option("-J,--json", options.json, "write the results to this file as JSON")->type_name("FILE");
  if (const std::optional<int> exit_code = parse(app, argc, argv)) return {options, exit_code};

  std::vector<std::string> chosen = {echo_active_codec()};
  if (!lists.targets.empty()) chosen = targets_of(lists.targets, targets);
  if (chosen.front().empty()) throw UsageError("ECHO_CODEC is none of " + choices_of(targets));
  const bool given = std::ranges::any_of(kind_options, [](const CLI::Option* option) { return option->count() > 0; });
  options.cases = cases_of(lists, given ? chosen_kinds(lists) : default_kinds(), chosen);
  check_memory(options.cases);
  return {options, std::nullopt};
}

}  // namespace echo_comm::tools
