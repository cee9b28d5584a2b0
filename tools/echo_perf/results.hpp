// What was measured, and the memory through which rank 0 hands it to the process that started it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "echo_perf/options.hpp"

namespace echo_comm::tools {

enum Place { kOutOfPlace = 0, kInPlace = 1 };
inline constexpr int kPlaces = 2;

// Times of an iteration are those of its slowest rank; microseconds.
struct Times {
  double p50 = 0;
  double p90 = 0;
  double p99 = 0;
  double min = 0;
  double max = 0;
};

struct Measurement {
  Times times[kContenders];     // of those that were measured
  double vs[kContenders] = {};  // median over the rounds of the baseline's time / Echo's time in the same round
  double exact_efficiency = 0;  // the same of the stream's time / the exact path's time; 0: not both were measured
  double rel_l2 = 0;
  std::uint64_t wrong = 0;     // elements, over all ranks
  std::uint64_t diverged = 0;  // elements that are not the same bytes on all ranks, over all compared results

  [[nodiscard]] const Times& time() const { return times[kEcho]; }
};

// How Echo's calls of a size went, see echo_path_t.
struct PathFacts {
  echo_path_kind_t kind = ECHO_PATH_EXACT;
  echo_algorithm_t algorithm = ECHO_ALGORITHM_AUTO;
  int bits = 0;
  int depth = 0;
  std::int64_t segment_values = 0;
  std::array<char, 160> reason{};

  [[nodiscard]] const char* kind_word() const;
  [[nodiscard]] const char* algorithm_word() const;  // "none" where there is no choice of algorithms
};

// One size.
struct Row {
  std::uint64_t bytes = 0;
  std::uint64_t count = 0;
  std::uint64_t payload_bytes = 0;    // sent by one rank in one call; of the rank that sends most
  std::int64_t interface_bytes = -1;  // that rank 0's interface sent in one call; -1: there is none
  PathFacts path;
  Measurement places[kPlaces];
};

// Logical bytes by time, GB/s (10^9).
double algbw(const Row& row, Place place);
double busbw(const Options& options, const Row& row, Place place);

// Over all rows.
struct Summary {
  double average_busbw = 0;
  std::uint64_t wrong = 0;
  std::uint64_t diverged = 0;
  std::uint64_t break_even = 0;  // bytes; from here on Echo is never slower than its exact path; 0: none, not measured

  Summary(const std::vector<Row>& rows, const Options& options);
};

// Medians and tails of the samples; sorts them.
Times times_of(std::vector<double>& samples);

// Memory that the parent and rank 0 share; made before the ranks start.
class Board {
 public:
  explicit Board(std::size_t most_rows);
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;
  ~Board();

  // Rank 0 adds rows; the parent reads those that are complete. wake() is readable when there may be new ones.
  void add(const Row& row);
  [[nodiscard]] std::vector<Row> rows() const;
  // The table of choices, before the first row.
  void set_table(const std::string& table);
  [[nodiscard]] std::string table() const;
  [[nodiscard]] int wake() const { return wake_; }
  void quiet() const;  // makes wake() unreadable until the next row

 private:
  static constexpr std::size_t kMostTable = 1 << 16;
  struct Head {
    std::atomic<std::uint64_t> rows;
    std::atomic<std::uint64_t> table_bytes;
    std::array<char, kMostTable> table;
  };

  int wake_ = -1;
  std::size_t bytes_ = 0;
  std::byte* memory_ = nullptr;
  Head* head_ = nullptr;
  Row* rows_ = nullptr;
};

}  // namespace echo_comm::tools
