#include "echo_perf/measure.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "common/element.hpp"
#include "common/inputs.hpp"

namespace echo_comm::tools {

RankRun::RankRun(const Options& options, SharedResults& results, Communicator comm)
    : options_(options), results_(results), comm_(std::move(comm)), in_(options.largest()), out_(options.largest()) {
  if (options.feedback) feedback_.emplace(comm_, options.largest() / element_size(options.dtype));
}

void RankRun::run() {
  for (const std::uint64_t bytes : options_.sizes) {
    Row row;
    row.bytes = bytes;
    row.count = bytes / element_size(options_.dtype);
    if (options_.check) {
      for (const Place place : {kOutOfPlace, kInPlace}) verify(row, place);
    }
    fill_random(in_.data(), row.count, options_.dtype, comm_.rank());
    count_payload(row);
    for (const Place place : {kOutOfPlace, kInPlace}) measure(row, place);
    if (comm_.rank() == 0) results_.add(row);
  }
  barrier();  // nobody leaves while another still waits for it
}

// Every call of a size sends the same number of bytes, so one call tells.
void RankRun::count_payload(Row& row) {
  barrier();
  reset_feedback();
  const echo_stats_t before = comm_.stats();
  call(row, kOutOfPlace, kEcho);
  const echo_stats_t after = comm_.stats();
  results_.share(comm_.rank()).payload_bytes = after.payload_bytes - before.payload_bytes;
  barrier();
  for (int rank = 0; rank < comm_.size(); ++rank) {
    row.payload_bytes = std::max(row.payload_bytes, results_.share(rank).payload_bytes);
  }
  row.shots = comm_.size() == 1 ? 0 : after.one_shot_calls > before.one_shot_calls ? 1 : 2;
}

// The contenders take turns, and so does who begins: whatever else happens on this host meets both alike.
void RankRun::measure(Row& row, Place place) {
  reset_feedback();
  const int contenders = options_.baseline ? kContenders : 1;
  for (int iteration = -options_.warmup_iters; iteration < options_.iters; ++iteration) {
    for (int turn = 0; turn < contenders; ++turn) {
      const bool swapped = contenders == 2 && iteration % 2 != 0;
      const Contender contender = (turn == 1) != swapped ? kBaseline : kEcho;
      const double us = timed_call(row, place, contender);
      if (iteration >= 0) results_.time(contender, comm_.rank(), iteration) = us;
    }
  }
  Measurement& measured = row.places[place];
  if (options_.check) {  // once more after all these calls: feedback must not have driven the ranks apart
    prepare(row, place);
    call(row, place, kEcho);
    results_.share(comm_.rank()) = {};
    count_diverged(row, out_.data());
    barrier();
    for (int rank = 0; rank < comm_.size(); ++rank) measured.diverged += results_.share(rank).diverged;
  }
  barrier();
  if (comm_.rank() == 0) {
    measured.time = slowest_rank(kEcho);
    if (options_.baseline) measured.baseline_us = slowest_rank(kBaseline).p50;
  }
  barrier();  // the times may be overwritten from here on
}

double RankRun::timed_call(const Row& row, Place place, Contender contender) {
  prepare(row, place);
  barrier();
  const auto begin = std::chrono::steady_clock::now();
  call(row, place, contender);
  const auto end = std::chrono::steady_clock::now();
  return std::chrono::duration<double, std::micro>(end - begin).count();
}

Times RankRun::slowest_rank(Contender contender) {
  std::vector<double> slowest(static_cast<std::size_t>(options_.iters));
  for (int iteration = 0; iteration < options_.iters; ++iteration) {
    double& time = slowest[static_cast<std::size_t>(iteration)];
    for (int rank = 0; rank < comm_.size(); ++rank) time = std::max(time, results_.time(contender, rank, iteration));
  }
  return times_of(slowest);
}

void RankRun::call(const Row& row, Place place, Contender contender) {
  echo_call_t call = ECHO_CALL_INITIALIZER;
  call.op = options_.op;
  call.bits = contender == kEcho ? options_.bits : ECHO_BITS_EXACT;
  call.algorithm = contender == kEcho ? options_.algorithm : ECHO_ALGORITHM_AUTO;
  const void* in = place == kInPlace ? out_.data() : in_.data();
  const bool with_feedback = contender == kEcho && feedback_;
  check(echo_all_reduce(in, out_.data(), row.count, options_.dtype, comm_.get(),
                        with_feedback ? feedback_->get() : nullptr, &call));
}

void RankRun::prepare(const Row& row, Place place) {
  if (place == kInPlace) std::memcpy(out_.data(), in_.data(), row.bytes);
}

void RankRun::reset_feedback() {
  if (feedback_) feedback_->reset();
}

// An exact all-reduce of nothing: each rank hears from every other, within the communicator's timeout.
void RankRun::barrier() {
  echo_call_t nothing = ECHO_CALL_INITIALIZER;
  nothing.bits = ECHO_BITS_EXACT;
  check(echo_all_reduce(nullptr, nullptr, 0, options_.dtype, comm_.get(), nullptr, &nothing));
}

}  // namespace echo_comm::tools
