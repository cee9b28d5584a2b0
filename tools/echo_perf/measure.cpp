#include "echo_perf/measure.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string_view>

#include "common/element.hpp"
#include "common/network.hpp"

namespace echo_comm::tools {

RankRun::RankRun(const Options& options, Communicator comm)
    : options_(options),
      comm_(std::move(comm)),
      exchange_(comm_.get()),
      in_(options.largest()),
      out_(options.largest()),
      contenders_{kEcho} {
  if (options.feedback) feedback_.emplace(comm_, options.largest() / element(), *options.feedback);
  contenders_.insert(contenders_.end(), options.baselines.begin(), options.baselines.end());
  for (const Contender contender : contenders_) own_times_[contender].resize(static_cast<std::size_t>(options.iters));
}

void RankRun::run(const std::function<void(const Row& row)>& on_row) {
  make_rivals();
  for (const std::uint64_t bytes : options_.sizes) {
    Row row;
    row.bytes = bytes;
    row.count = bytes / element();
    counts_.clear();
    for (int rank = 0; rank < comm_.size(); ++rank) counts_.push_back(part_of(row, rank).count);
    if (options_.check) {
      for (const Place place : {kOutOfPlace, kInPlace}) verify(row, place);
    }
    measure_size(row);
    on_row(row);
  }
  exchange_.barrier();  // nobody leaves while another still waits for it
}

void RankRun::make_rivals() {
  const std::string interface = options_.interface.empty() ? "lo" : options_.interface;
  const RivalSettings settings{interface, std::chrono::seconds(options_.timeout_s), options_.largest() / element()};
  if (options_.has(kGloo)) rivals_[kGloo] = make_gloo_rival(exchange_, settings);
  if (options_.has(kStream)) rivals_[kStream] = make_stream_rival(exchange_, settings);
}

void RankRun::measure_size(Row& row) {
  fill_random(in_.data(), row.count, options_.dtype, comm_.rank());
  count_payload(row);
  count_interface(row);
  for (const Place place : {kOutOfPlace, kInPlace}) measure(row, place);
}

// Every call of a size sends the same number of bytes, so one call tells.
void RankRun::count_payload(Row& row) {
  const auto sent_by = [&](Contender contender) {
    exchange_.barrier();
    reset_feedback();
    const std::uint64_t before = comm_.stats().payload_bytes;
    call_echo(row, kOutOfPlace, contender);
    return exchange_.gather(comm_.stats().payload_bytes - before);
  };
  const std::uint64_t exact = sent_by(kExact)[0];
  for (const auto& rival : rivals_) {
    if (rival) rival->begin(row.count, exact);
  }
  row.payload_bytes = std::ranges::max(sent_by(kEcho));

  echo_path_t path = ECHO_PATH_INITIALIZER;
  check(echo_comm_last_path(comm_.get(), &path));
  row.path = {path.kind, path.algorithm, path.bits, path.depth, path.segment_values, {}};
  if (comm_.size() == 1) row.path.algorithm = ECHO_ALGORITHM_AUTO;  // nothing travels
  const std::string_view reason = path.reason;
  std::copy_n(reason.begin(), std::min(reason.size(), row.path.reason.size() - 1), row.path.reason.begin());
}

// Not while times are taken: then the baselines' bytes would be counted too. The barrier's few bytes are.
void RankRun::count_interface(Row& row) {
  if (options_.interface.empty()) return;
  const int calls = row.bytes < (1U << 20) ? 8 : 2;
  reset_feedback();
  exchange_.barrier();
  const std::optional<std::int64_t> before = sent_bytes(options_.interface);
  for (int i = 0; i < calls; ++i) call_echo(row, kOutOfPlace, kEcho);
  exchange_.barrier();
  const std::optional<std::int64_t> after = sent_bytes(options_.interface);
  const std::int64_t bytes = before && after ? (*after - *before) / calls : -1;
  row.interface_bytes = exchange_.gather(bytes)[0];
}

// The contenders take turns, and so does who begins: whatever else happens on this host meets all alike.
void RankRun::measure(Row& row, Place place) {
  reset_feedback();
  const int count = static_cast<int>(contenders_.size());
  for (int round = -options_.warmup_iters; round < options_.iters; ++round) {
    for (int turn = 0; turn < count; ++turn) {
      const int at = (turn + round + options_.warmup_iters) % count;
      const Contender contender = contenders_[static_cast<std::size_t>(at)];
      const double us = timed_call(row, place, contender);
      if (round >= 0) own_times_[contender][static_cast<std::size_t>(round)] = us;
    }
  }
  Measurement& measured = row.places[place];
  if (options_.check) {  // once more after all these calls: feedback must not have driven the ranks apart
    prepare(row, place, kEcho);
    call(row, place, kEcho);
    measured.diverged += count_diverged(row);
  }
  judge_times(measured);
}

double RankRun::timed_call(const Row& row, Place place, Contender contender) {
  prepare(row, place, contender);
  exchange_.barrier();
  const auto begin = std::chrono::steady_clock::now();
  call(row, place, contender);
  const auto end = std::chrono::steady_clock::now();
  return std::chrono::duration<double, std::micro>(end - begin).count();
}

void RankRun::judge_times(Measurement& measured) {
  std::array<std::vector<double>, kContenders> times;
  for (const Contender contender : contenders_) times[contender] = slowest_ranks(contender);
  const auto median_ratio = [&](Contender above, Contender below) {
    std::vector<double> ratios;
    for (std::size_t round = 0; round < times[above].size(); ++round) {
      constexpr double kTick = 1e-3;  // of the clock; no time is 0
      ratios.push_back(times[above][round] / std::max(times[below][round], kTick));
    }
    return times_of(ratios).p50;
  };
  for (const Contender baseline : options_.baselines) measured.vs[baseline] = median_ratio(baseline, kEcho);
  if (options_.has(kStream) && options_.has(kExact)) measured.exact_efficiency = median_ratio(kStream, kExact);
  for (const Contender contender : contenders_) measured.times[contender] = times_of(times[contender]);
}

std::vector<double> RankRun::slowest_ranks(Contender contender) const {
  const std::vector<double>& own = own_times_[contender];
  const std::vector<double> all = exchange_.gather(std::span<const double>(own));
  std::vector<double> slowest(own.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    double& time = slowest[i % own.size()];
    time = std::max(time, all[i]);
  }
  return slowest;
}

void RankRun::call(const Row& row, Place place, Contender contender) {
  if (rivals_[contender])
    rivals_[contender]->call();
  else
    call_echo(row, place, contender);
}

void RankRun::call_echo(const Row& row, Place place, Contender contender) {
  echo_call_t call = ECHO_CALL_INITIALIZER;
  call.op = options_.op;
  call.bits = contender == kEcho ? options_.bits : ECHO_BITS_EXACT;
  call.algorithm = contender == kEcho ? options_.algorithm : ECHO_ALGORITHM_AUTO;
  const echo_feedback_t feedback = contender == kEcho && feedback_ ? feedback_->get() : nullptr;
  const std::byte* in = place == kInPlace ? out_.data() : in_.data();
  const std::size_t own = part_of(row, comm_.rank()).first * element();
  switch (options_.what) {
    case ECHO_ALL_REDUCE:
      check(echo_all_reduce(in, out_.data(), row.count, options_.dtype, comm_.get(), feedback, &call));
      break;
    case ECHO_REDUCE_SCATTER:
      check(echo_reduce_scatter(in, out_.data() + own, row.count, counts_.data(), options_.dtype, comm_.get(), feedback,
                                &call));
      break;
    case ECHO_ALL_GATHER:
      check(echo_all_gather(in + own, out_.data(), row.count, counts_.data(), options_.dtype, comm_.get(), &call));
      break;
  }
}

void RankRun::prepare(const Row& row, Place place, Contender contender) {
  if (rivals_[contender])
    rivals_[contender]->prepare(place);
  else if (place == kInPlace)
    std::memcpy(out_.data(), in_.data(), row.bytes);
}

void RankRun::reset_feedback() {
  if (feedback_) feedback_->reset();
}

RankRun::Part RankRun::part_of(const Row& row, int rank) const {
  const auto size = static_cast<std::uint64_t>(comm_.size());
  const auto index = static_cast<std::uint64_t>(rank);
  const std::uint64_t first = row.count * index / size;
  return {first, row.count * (index + 1) / size - first};
}

std::size_t RankRun::element() const { return element_size(options_.dtype); }

}  // namespace echo_comm::tools
