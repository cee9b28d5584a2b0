// One rank's part of the measurement: for each size first what is right, then how long it takes.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/exchange.hpp"
#include "common/inputs.hpp"
#include "echo_comm/echo.hpp"
#include "echo_perf/buffer.hpp"
#include "echo_perf/options.hpp"
#include "echo_perf/results.hpp"
#include "echo_perf/rival.hpp"

namespace echo_comm::tools {

class RankRun {
 public:
  RankRun(const Options& options, Communicator comm);

  // All sizes; on_row is called on every rank, with the same row. Throws Exception when the library fails, other
  // exceptions when a rival does; the communicator must then be destroyed.
  void run(const std::function<void(const Row& row)>& on_row);

  [[nodiscard]] std::string table() const { return echo_comm_table(comm_.get()); }

 private:
  // Elements of the whole tensor that belong to one rank.
  struct Part {
    std::size_t first;
    std::size_t count;
  };

  // One size, in verify.cpp ...
  void verify(Row& row, Place place);
  [[nodiscard]] std::uint64_t wrong_on_grid(Row& row, Place place);
  [[nodiscard]] SquaredError error_on_random(Row& row, Place place);
  void fill(const Row& row, const Grid& grid);
  [[nodiscard]] std::uint64_t count_wrong_parts(const Row& row, const Grid& grid) const;
  [[nodiscard]] std::uint64_t count_diverged(const Row& row) const;
  [[nodiscard]] std::uint64_t count_differences(std::span<const std::byte> own) const;
  [[nodiscard]] Grid grid_of_part(Grid grid, int rank) const;
  // ... and measure.cpp.
  void measure_size(Row& row);
  void make_rivals();
  void count_payload(Row& row);
  void count_interface(Row& row);
  void measure(Row& row, Place place);
  void judge_times(Measurement& measured);
  [[nodiscard]] double timed_call(const Row& row, Place place, Contender contender);
  [[nodiscard]] std::vector<double> slowest_ranks(Contender contender) const;

  // One call of the contender; Echo's result lies in out_ (reduce-scatter: at this rank's part of it).
  void call(const Row& row, Place place, Contender contender);
  void call_echo(const Row& row, Place place, Contender contender);
  // For an in-place call: brings the input to where the result will be.
  void prepare(const Row& row, Place place, Contender contender);
  void reset_feedback();
  [[nodiscard]] Part part_of(const Row& row, int rank) const;
  [[nodiscard]] std::size_t element() const;

  const Options& options_;
  Communicator comm_;
  Exchange exchange_;
  std::optional<Feedback> feedback_;
  Buffer in_;
  Buffer out_;
  std::vector<std::size_t> counts_;  // of the parts
  std::array<std::unique_ptr<Rival>, kContenders> rivals_;
  std::vector<Contender> contenders_;                       // Echo and the baselines
  std::array<std::vector<double>, kContenders> own_times_;  // of this rank, by iteration
};

}  // namespace echo_comm::tools
