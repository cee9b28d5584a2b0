// What to measure. Flags that nccl-tests has are called as there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "echo_comm/echo.h"

namespace echo_comm::tools {

enum class TransportKind { kShm, kInproc };  // ranks are processes; ranks are threads of one process

struct Options {
  std::string collective = "all_reduce";
  std::vector<std::uint64_t> sizes;  // bytes of the logical tensor, ascending, whole elements
  int iters = 20;
  int warmup_iters = 5;
  bool check = true;
  std::string datatype = "bfloat16";
  echo_dtype_t dtype = ECHO_BFLOAT16;
  std::string redop = "sum";
  echo_op_t op = ECHO_SUM;

  int ranks = 2;
  std::string transport = "shm";
  TransportKind kind = TransportKind::kShm;
  std::string codec = "q4";
  int bits = 4;
  bool baseline = true;
  bool feedback = true;
  std::string algorithm_wanted = "auto";
  echo_algorithm_t algorithm = ECHO_ALGORITHM_AUTO;
  int timeout_s = 30;

  std::string json;  // files, "": none
  std::string csv;

  [[nodiscard]] std::uint64_t largest() const { return sizes.back(); }
};

// Gives an exit code in place of options when the program is to end at once. Throws UsageError.
struct Parsed {
  Options options;
  std::optional<int> exit_code;
};
Parsed parse_options(int argc, const char* const* argv);

}  // namespace echo_comm::tools
