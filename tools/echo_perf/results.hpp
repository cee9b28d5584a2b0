// What was measured, and the memory in which the ranks put it together.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "echo_perf/options.hpp"

namespace echo_comm::tools {

enum Place { kOutOfPlace = 0, kInPlace = 1 };
inline constexpr int kPlaces = 2;

// Who is timed. Both are calls on the same communicator, in turn.
enum Contender { kEcho = 0, kBaseline = 1 };
inline constexpr int kContenders = 2;

// Times of an iteration are those of its slowest rank; microseconds.
struct Times {
  double p50 = 0;
  double p95 = 0;
  double p99 = 0;
  double min = 0;
  double max = 0;
};

struct Measurement {
  Times time;
  double baseline_us = 0;  // median, 0: no baseline
  double rel_l2 = 0;
  std::uint64_t wrong = 0;     // elements, over all ranks
  std::uint64_t diverged = 0;  // elements that are not the same bytes on all ranks, over all compared results

  [[nodiscard]] double ratio() const { return time.p50 > 0 ? baseline_us / time.p50 : 0; }
};

// One size.
struct Row {
  std::uint64_t bytes = 0;
  std::uint64_t count = 0;
  std::uint64_t payload_bytes = 0;  // sent by one rank in one call; of the rank that sends most
  int shots = 0;                    // 1: one-shot, 2: two-shot, 0: nothing travels
  Measurement places[kPlaces];

  [[nodiscard]] const char* algorithm() const { return shots == 0 ? "none" : shots == 1 ? "one-shot" : "two-shot"; }
};

// Logical bytes by time, GB/s (10^9).
double algbw(const Row& row, Place place);
double busbw(const Row& row, Place place, int ranks);

// Over all rows.
struct Summary {
  double average_busbw = 0;
  std::uint64_t wrong = 0;
  std::uint64_t diverged = 0;
  std::uint64_t break_even = 0;  // bytes; from here on every measured size has a ratio of at least 1; 0: none

  Summary(const std::vector<Row>& rows, const Options& options);
};

// Medians and tails of the samples; sorts them.
Times times_of(std::vector<double>& samples);

// Memory that the parent and all ranks share; made before they start. Ranks separate their accesses by barriers.
class SharedResults {
 public:
  static constexpr std::size_t kWindow = 1 << 20;  // bytes of a result that are compared at once

  explicit SharedResults(const Options& options);
  SharedResults(const SharedResults&) = delete;
  SharedResults& operator=(const SharedResults&) = delete;
  ~SharedResults();

  // What each rank contributes to the row that is being measured.
  struct alignas(64) Share {
    double error;
    double reference;
    std::uint64_t wrong;
    std::uint64_t diverged;
    std::uint64_t payload_bytes;
  };

  [[nodiscard]] Share& share(int rank) const;
  // Time of one call of one rank, microseconds.
  [[nodiscard]] double& time(Contender contender, int rank, int iteration) const;
  // Where the rank shows a piece of its result to the others.
  [[nodiscard]] std::byte* window(int rank) const;

  // Rank 0 adds rows; the parent reads those that are complete. wake() is readable when there may be new ones.
  void add(const Row& row);
  [[nodiscard]] std::vector<Row> rows() const;
  [[nodiscard]] int wake() const { return wake_; }
  void quiet() const;  // makes wake() unreadable until the next row

 private:
  struct Head {
    std::atomic<std::uint64_t> rows;
  };

  int ranks_;
  int iters_;
  int wake_ = -1;
  std::size_t bytes_ = 0;
  std::byte* memory_ = nullptr;
  Head* head_ = nullptr;
  Row* rows_ = nullptr;
  Share* shares_ = nullptr;
  double* times_ = nullptr;
  std::byte* windows_ = nullptr;
};

}  // namespace echo_comm::tools
