// What to measure. Flags that nccl-tests has are called as there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "echo_comm/echo.h"
#include "echo_perf/words.hpp"

namespace echo_comm::tools {

// Ranks are processes of this host, threads of one process, or processes joined by a network.
enum class TransportKind { kShm, kInproc, kGloo };

// Who is timed, in turn. kEcho is what the flags describe, the others are baselines.
enum Contender { kEcho = 0, kExact = 1, kGloo = 2, kStream = 3 };
inline constexpr int kContenders = 4;

using FeedbackKind = std::optional<echo_store_t>;  // nullopt: no feedback

inline const Words<echo_collective_t> kCollectives = {
    {"all_reduce", ECHO_ALL_REDUCE}, {"reduce_scatter", ECHO_REDUCE_SCATTER}, {"all_gather", ECHO_ALL_GATHER}};
inline const Words<echo_dtype_t> kTypes = {
    {"float", ECHO_FLOAT32}, {"half", ECHO_FLOAT16}, {"bfloat16", ECHO_BFLOAT16}, {"bf16", ECHO_BFLOAT16}};
inline const Words<echo_op_t> kOps = {{"sum", ECHO_SUM}, {"avg", ECHO_AVG}};
inline const Words<TransportKind> kTransports = {
    {"inproc", TransportKind::kInproc}, {"shm", TransportKind::kShm}, {"gloo", TransportKind::kGloo}};
inline const Words<int> kCodecs = {{"q3", 3},  {"q4", 4}, {"q5", 5}, {"q6", 6}, {"q8", 8}, {"exact", ECHO_BITS_EXACT},
                                   {"auto", 0}};
inline const Words<Contender> kBaselines = {{"exact", kExact}, {"gloo", kGloo}, {"stream", kStream}};
inline const Words<FeedbackKind> kFeedbacks = {{"none", std::nullopt},
                                               {"auto", ECHO_STORE_AUTO},
                                               {"fp32", ECHO_STORE_FP32},
                                               {"int8", ECHO_STORE_INT8},
                                               {"int16", ECHO_STORE_INT16}};
inline const Words<echo_algorithm_t> kAlgorithms = {
    {"auto", ECHO_ALGORITHM_AUTO}, {"one_shot", ECHO_ONE_SHOT}, {"two_shot", ECHO_TWO_SHOT}};

// The network lab to run in.
struct LabOptions {
  std::string rate;
  int flows = 0;
  std::string folder;  // of the lab itself
};

struct Options {
  std::string collective = "all_reduce";
  echo_collective_t what = ECHO_ALL_REDUCE;
  std::vector<std::uint64_t> sizes;  // bytes of the logical tensor, ascending, whole elements
  int iters = 20;
  int warmup_iters = 5;
  bool check = true;
  std::string datatype = "bfloat16";
  echo_dtype_t dtype = ECHO_BFLOAT16;
  std::string redop = "sum";  // "none" where nothing is reduced
  echo_op_t op = ECHO_SUM;

  int ranks = 2;
  std::string transport = "shm";
  TransportKind kind = TransportKind::kShm;
  std::string codec = "q4";
  int bits = 4;  // 0: the table decides
  std::string baseline = "exact";
  std::vector<Contender> baselines;  // in the order they were named
  std::string feedback_wanted;
  FeedbackKind feedback;
  std::string algorithm_wanted = "auto";
  echo_algorithm_t algorithm = ECHO_ALGORITHM_AUTO;
  std::string table;  // rows, or @FILE; "": what the library does by itself
  bool tune = false;
  int timeout_s = 30;

  int rank = -1;          // >= 0: this process is that rank, somebody else starts the others
  std::string directory;  // where such ranks meet
  std::string interface;  // that the network's traffic uses; "": none, or chosen by the library
  std::optional<LabOptions> lab;

  bool percentiles = false;
  bool verbose = false;
  std::string json;  // files, "": none
  std::string csv;
  std::string plot;

  std::vector<std::string> repeated;  // the flags as given, without those of the lab, the ranks and the JSON file

  [[nodiscard]] std::uint64_t largest() const { return sizes.back(); }
  [[nodiscard]] bool has(Contender baseline) const { return std::ranges::find(baselines, baseline) != baselines.end(); }
};

// Gives an exit code in place of options when the program is to end at once. Throws UsageError.
struct Parsed {
  Options options;
  std::optional<int> exit_code;
};
Parsed parse_options(int argc, const char* const* argv);

}  // namespace echo_comm::tools
