// echo-perf-mpi: Echo over shared memory next to MPI_Allreduce, in turn, in the processes that mpirun starts.
//
//   mpirun -n 2 echo-perf-mpi -b 4K -e 64M -f 4
//
// Exit status: 0 all results right; 1 an element was wrong, or a call failed; 2 bad usage.
#include <mpi.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <exception>
#include <optional>

#include "common/build.hpp"
#include "common/command_line.hpp"
#include "common/element.hpp"
#include "common/host.hpp"
#include "common/inputs.hpp"
#include "common/processes.hpp"
#include "echo_perf/buffer.hpp"
#include "echo_perf/results.hpp"

namespace echo_comm::tools {
namespace {

constexpr int kMpiSchema = 1;

// Who is timed: the same number of elements, each in its own type.
struct Rival {
  const char* name;
  echo_dtype_t dtype;
  int bits;  // 0: MPI
};
constexpr std::array kRivals = {
    Rival{"mpi", ECHO_FLOAT32, 0},
    Rival{"exact_fp32", ECHO_FLOAT32, ECHO_BITS_EXACT},
    Rival{"exact_bf16", ECHO_BFLOAT16, ECHO_BITS_EXACT},
    Rival{"q4_bf16", ECHO_BFLOAT16, 4},
};
constexpr std::size_t kMpi = 0;
constexpr std::size_t kElementBytes = 2;  // of the sizes on the command line: bf16

struct MpiOptions {
  std::uint64_t minbytes = 4 << 10;
  std::uint64_t maxbytes = 64 << 20;
  std::uint64_t factor = 4;
  int iters = 20;
  int warmup_iters = 5;
  std::string json;
};

struct MpiRow {
  std::uint64_t bytes = 0;
  std::uint64_t count = 0;
  std::uint64_t wrong = 0;
  std::array<Times, kRivals.size()> times;
  std::array<double, kRivals.size()> vs_mpi{};  // median over rounds of MPI's time / this one's in the same round
};

void check_mpi(int result, const char* what) {
  if (result != MPI_SUCCESS) throw std::runtime_error(std::string(what) + " failed");
}

std::optional<int> parse_mpi_options(int argc, const char* const* argv, MpiOptions& options) {
  CLI::App app("Measures Echo over shared memory next to MPI_Allreduce. Start it by mpirun, on one host.",
               "echo-perf-mpi");
  app.set_version_flag("--version", std::string("echo-perf-mpi ") + ECHO_VERSION_STRING);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::Throw);
  const CLI::AsSizeValue size(false);
  app.add_option("-b,--minbytes", options.minbytes, "smallest size, of the tensor as bf16")
      ->transform(size)
      ->type_name("BYTES")
      ->default_str("4K");
  app.add_option("-e,--maxbytes", options.maxbytes, "largest size")
      ->transform(size)
      ->type_name("BYTES")
      ->default_str("64M");
  app.add_option("-f,--stepfactor", options.factor, "multiply the size by this")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  app.add_option("-n,--iters", options.iters, "timed rounds")->check(CLI::Range(1, 100000))->capture_default_str();
  app.add_option("-w,--warmup_iters", options.warmup_iters, "rounds before the timed ones")
      ->check(CLI::Range(0, 100000))
      ->capture_default_str();
  app.add_option("-J,--json", options.json, "write the results to this file as JSON")->type_name("FILE");
  if (const std::optional<int> exit_code = parse(app, argc, argv)) return exit_code;
  constexpr std::uint64_t kMost = std::uint64_t{1} << 31;  // MPI counts elements in an int
  if (options.minbytes < kElementBytes || options.minbytes > options.maxbytes || options.maxbytes > kMost) {
    throw UsageError("--minbytes, --maxbytes: allowed: 2 <= minbytes <= maxbytes <= 2G");
  }
  return std::nullopt;
}

class MpiRun {
 public:
  MpiRun(const MpiOptions& options, int rank, int size)
      : options_(options),
        comm_(join(rank, size)),
        floats_(2 * options.maxbytes),
        brains_(options.maxbytes),
        out_(2 * options.maxbytes) {}

  MpiRow run(std::uint64_t bytes) {
    MpiRow row;
    row.bytes = bytes / kElementBytes * kElementBytes;
    row.count = bytes / kElementBytes;
    for (const Rival& rival : kRivals) row.wrong += wrong_of(rival, row.count);
    MPI_Allreduce(MPI_IN_PLACE, &row.wrong, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    measure(row);
    return row;
  }

 private:
  static Communicator join(int rank, int size) {
    std::array<char, 64> name{};
    if (rank == 0) std::ranges::copy(random_name("echo-mpi"), name.begin());
    check_mpi(MPI_Bcast(name.data(), static_cast<int>(name.size()), MPI_CHAR, 0, MPI_COMM_WORLD), "MPI_Bcast");
    return Communicator::create(std::string("shm://") + name.data() + "?rank=" + std::to_string(rank) +
                                "&size=" + std::to_string(size));
  }

  [[nodiscard]] std::byte* in(const Rival& rival) const {
    return rival.dtype == ECHO_FLOAT32 ? floats_.data() : brains_.data();
  }

  void call(const Rival& rival, std::uint64_t count) {
    if (rival.bits == 0) {
      check_mpi(MPI_Allreduce(in(rival), out_.data(), static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD),
                "MPI_Allreduce");
      return;
    }
    echo_call_t call = ECHO_CALL_INITIALIZER;
    call.bits = rival.bits;
    check(echo_all_reduce(in(rival), out_.data(), count, rival.dtype, comm_.get(), nullptr, &call));
  }

  // Values whose sum is known to the bit, for every one of them.
  std::uint64_t wrong_of(const Rival& rival, std::uint64_t count) {
    const Grid grid{.bits = 4, .ranks = comm_.size()};
    fill_grid(in(rival), count, rival.dtype, comm_.rank(), grid);
    call(rival, count);
    return count_wrong(out_.data(), count, rival.dtype, grid);
  }

  // All take their turn in each round, and so does who begins.
  void measure(MpiRow& row) {
    for (const Rival& rival : kRivals) fill_random(in(rival), row.count, rival.dtype, comm_.rank());
    std::array<std::vector<double>, kRivals.size()> times;
    for (int round = -options_.warmup_iters; round < options_.iters; ++round) {
      for (std::size_t turn = 0; turn < kRivals.size(); ++turn) {
        const std::size_t at = (turn + static_cast<std::size_t>(round + options_.warmup_iters)) % kRivals.size();
        check_mpi(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");
        const auto begin = std::chrono::steady_clock::now();
        call(kRivals[at], row.count);
        const auto end = std::chrono::steady_clock::now();
        if (round >= 0) times[at].push_back(std::chrono::duration<double, std::micro>(end - begin).count());
      }
    }
    for (std::vector<double>& own : times) {  // becomes that of the slowest rank
      check_mpi(MPI_Allreduce(MPI_IN_PLACE, own.data(), options_.iters, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD),
                "MPI_Allreduce");
    }
    for (std::size_t i = 0; i < times.size(); ++i) {
      std::vector<double> ratios;
      for (std::size_t round = 0; round < times[i].size(); ++round) {
        constexpr double kTick = 1e-3;  // of the clock; no time is 0
        ratios.push_back(times[kMpi][round] / std::max(times[i][round], kTick));
      }
      row.vs_mpi[i] = times_of(ratios).p50;
    }
    for (std::size_t i = 0; i < times.size(); ++i) row.times[i] = times_of(times[i]);
  }

  const MpiOptions& options_;
  Communicator comm_;
  Buffer floats_;
  Buffer brains_;  // bf16
  Buffer out_;
};

std::string mpi_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string version(text.data());
  return version.substr(0, version.find(','));
}

void print_mpi_header(const MpiOptions& options, int size) {
  const HostFacts host = host_facts();
  std::printf("# echo-perf-mpi %s, %s, %d ranks on %d cores of %s\n", ECHO_VERSION_STRING, mpi_version().c_str(), size,
              host.cores, host.cpu.c_str());
  std::printf("# all-reduce, sum; mpi: MPI_Allreduce of fp32; the others: Echo over shm, same number of elements\n");
  std::printf("# %d rounds after %d for warm-up, in each all take their turn; times of the slowest rank, medians\n",
              options.iters, options.warmup_iters);
  std::printf("# vs mpi: median over rounds of MPI's time / this one's in the same round, above 1 Echo wins\n#\n");
  std::printf("#%11s %12s |%11s |%11s %7s |%11s %7s |%11s %7s | %6s\n", "size", "count", "mpi fp32", "exact fp32",
              "vs mpi", "exact bf16", "vs mpi", "q4 bf16", "vs mpi", "#wrong");
  std::printf("#%11s %12s |%11s |%11s %7s |%11s %7s |%11s %7s |\n", "(B of bf16)", "(elements)", "(us)", "(us)", "",
              "(us)", "", "(us)", "");
  std::fflush(stdout);
}

void print_mpi_row(const MpiRow& row) {
  std::printf("%12llu %12llu |%11.1f |", static_cast<unsigned long long>(row.bytes),
              static_cast<unsigned long long>(row.count), row.times[kMpi].p50);
  for (std::size_t i = 1; i < kRivals.size(); ++i) std::printf("%11.1f %7.2f |", row.times[i].p50, row.vs_mpi[i]);
  std::printf(" %6llu\n", static_cast<unsigned long long>(row.wrong));
  std::fflush(stdout);
}

std::string json_of(const MpiOptions& options, int size, const std::vector<MpiRow>& rows) {
  Json env = to_json(build_facts());
  env["time"] = utc_now();
  env["host"] = to_json(host_facts());
  env["mpi"] = mpi_version();
  env["options"] = {{"iters", options.iters}, {"warmup_iters", options.warmup_iters}};
  Json list = Json::array();
  for (const MpiRow& row : rows) {
    Json entry = {{"transport", "shm"}, {"collective", "all_reduce"}, {"ranks", size},
                  {"bytes", row.bytes}, {"count", row.count},         {"wrong", row.wrong}};
    for (std::size_t i = 0; i < kRivals.size(); ++i) {
      const Times& times = row.times[i];
      entry["time_us"][kRivals[i].name] = times.p50;
      entry["percentiles"][kRivals[i].name] = {
          {"p50", times.p50}, {"p90", times.p90}, {"p99", times.p99}, {"min", times.min}};
      if (i != kMpi) entry["vs_mpi"][kRivals[i].name] = row.vs_mpi[i];
    }
    list.push_back(entry);
  }
  return Json{{"schema", kMpiSchema}, {"env", env}, {"rows", list}}.dump(2) + "\n";
}

int measure_all(const MpiOptions& options, int rank, int size) {
  std::optional<OutputFile> json;
  if (rank == 0 && !options.json.empty()) json.emplace(options.json);
  if (rank == 0) print_mpi_header(options, size);
  MpiRun run(options, rank, size);
  std::vector<MpiRow> rows;
  std::uint64_t wrong = 0;
  for (std::uint64_t bytes = options.minbytes; bytes <= options.maxbytes; bytes *= options.factor) {
    rows.push_back(run.run(bytes));
    wrong += rows.back().wrong;
    if (rank == 0) print_mpi_row(rows.back());
  }
  if (rank == 0)
    std::printf("# wrong: %llu  %s\n", static_cast<unsigned long long>(wrong), wrong == 0 ? "OK" : "FAILED");
  if (json) json->write(json_of(options, size, rows));
  flush_stdout();
  return wrong == 0 ? kExitOk : kExitFailed;
}

// Rank 0 reads the command line first and says what is wrong with it, once.
std::optional<int> parse_everywhere(int argc, const char* const* argv, int rank, MpiOptions& options) {
  int code = -1;
  try {
    if (rank == 0) code = parse_mpi_options(argc, argv, options).value_or(-1);
  } catch (const UsageError& error) {
    complain("echo-perf-mpi", error.what());
    code = kExitUsage;
  }
  check_mpi(MPI_Bcast(&code, 1, MPI_INT, 0, MPI_COMM_WORLD), "MPI_Bcast");
  if (code >= 0) return code;
  if (rank != 0) static_cast<void>(parse_mpi_options(argc, argv, options));
  return std::nullopt;
}

}  // namespace
}  // namespace echo_comm::tools

int main(int argc, char** argv) {
  using namespace echo_comm::tools;
  if (MPI_Init(&argc, &argv) != MPI_SUCCESS) return kExitFailed;
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  int status = kExitFailed;
  try {
    MpiOptions options;
    const std::optional<int> code = parse_everywhere(argc, argv, rank, options);
    status = code ? *code : measure_all(options, rank, size);
  } catch (const std::exception& error) {
    complain("echo-perf-mpi", "rank " + std::to_string(rank) + ": " + error.what());
    MPI_Abort(MPI_COMM_WORLD, dynamic_cast<const UsageError*>(&error) != nullptr ? kExitUsage : kExitFailed);
  }
  MPI_Finalize();
  return status;
}
