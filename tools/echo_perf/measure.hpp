// One rank's part of the measurement: for each size first what is right, then how long it takes.
#pragma once

#include <cstddef>
#include <optional>

#include "echo_comm/echo.hpp"
#include "echo_perf/buffer.hpp"
#include "echo_perf/options.hpp"
#include "echo_perf/results.hpp"

namespace echo_comm::tools {

class RankRun {
 public:
  RankRun(const Options& options, SharedResults& results, Communicator comm);

  // All sizes. Throws Exception when the library fails; the communicator must then be destroyed.
  void run();

 private:
  // One size, in verify.cpp ...
  void verify(Row& row, Place place);
  void verify_grid(const Row& row, Place place);
  void verify_random(Row& row, Place place);
  void count_diverged(const Row& row, const std::byte* result);
  void collect_verified(Row& row, Place place);
  // ... and measure.cpp.
  void count_payload(Row& row);
  void measure(Row& row, Place place);
  [[nodiscard]] double timed_call(const Row& row, Place place, Contender contender);
  [[nodiscard]] Times slowest_rank(Contender contender);

  // One call of the contender; the result lies in out_.
  void call(const Row& row, Place place, Contender contender);
  // For an in-place call: brings the input to where the result will be.
  void prepare(const Row& row, Place place);
  void reset_feedback();
  // Returns when all ranks are here, and what they wrote before is visible. Fails when one of them is gone.
  void barrier();

  const Options& options_;
  SharedResults& results_;
  Communicator comm_;
  std::optional<Feedback> feedback_;
  Buffer in_;
  Buffer out_;
};

}  // namespace echo_comm::tools
