#include "collective/tuner.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <vector>

#include "base/error.hpp"
#include "codec/element.hpp"

namespace echo_comm::core {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

// A coded call must be faster by this much to be preferred: below it the figures are noise, and exact is exact.
constexpr double kWorthIt = 0.97;
constexpr std::array<int64_t, 7> kSizes = {4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20};
constexpr int64_t kGrowth = 4;                    // from one size to the next
constexpr int64_t kLargeBytes = 256 << 10;        // from here on a call is long enough to be timed by itself
constexpr int64_t kMostOneShotBytes = 256 << 10;  // beyond two ranks: it sends W/2 times as much

constexpr std::pair<int64_t, int> kBuiltIn = {0, 0};  // segments and depth as the transport and the tensor suggest

// What rank 0 says next: measure these candidates for this size, or stop (bytes 0).
struct Command {
  int64_t bytes = 0;
  int64_t rounds = 0;
  int64_t tuning_pipeline = 0;  // the candidates are segment sizes and depths of `path` and `algorithm`
  int64_t path = 0;
  int64_t algorithm = 0;
};

Request broadcast_of(void* data, int64_t bytes, int size) {
  // Bytes travel as fp32 elements: an exact broadcast copies them.
  const GroupLayout layout(bytes / 4, 0);
  return {.wish = control_wish(Collective::kBroadcast, layout.count()),
          .partition = Partition::chunks(layout, size),
          .dtype = Dtype::kFloat32,
          .in = data,
          .out = data};
}

template <typename T>
void share(Communicator& communicator, T& value) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % 4 == 0);
  communicator.run(broadcast_of(&value, sizeof value, communicator.size()));
}

class Tuner {
 public:
  Tuner(Communicator& communicator, std::chrono::milliseconds budget)
      : communicator_(communicator), end_(Clock::now() + budget) {}

  Table run() {
    std::vector<TableRow> rows = by_size();
    if (communicator_.rank() == 0) finish(rows);
    return Table::parse(share_text(communicator_, Table(std::move(rows)).to_text()));
  }

 private:
  [[nodiscard]] bool leads() const { return communicator_.rank() == 0; }

  // ---- all ranks: what is measured is a function of the command ----

  [[nodiscard]] std::vector<TableRow> candidates(const Command& command) const {
    std::vector<TableRow> all;
    if (command.tuning_pipeline != 0) {
      constexpr std::array<std::pair<int64_t, int>, 8> kPipelines = {{kBuiltIn,
                                                                      {16 << 10, 3},
                                                                      {64 << 10, 1},
                                                                      {64 << 10, 3},
                                                                      {128 << 10, 6},
                                                                      {256 << 10, 1},
                                                                      {256 << 10, 3},
                                                                      {256 << 10, 6}}};
      for (const auto& [values, depth] : kPipelines) {
        all.push_back({Collective::kAllReduce, INT64_MAX, static_cast<Path>(command.path),
                       static_cast<Algorithm>(command.algorithm), values, depth});
      }
      return all;
    }
    const int size = communicator_.size();
    const bool one_shot = size == 2 || command.bytes <= kMostOneShotBytes;
    for (const Path path : {Path::kExact, Path::kCoded}) {
      if (one_shot) all.push_back({.path = path, .algorithm = Algorithm::kOneShot});
      // Two ranks: the same bytes as one-shot, but a second wait and a second rounding.
      if (size > 2 || path == Path::kExact) all.push_back({.path = path, .algorithm = Algorithm::kTwoShot});
    }
    return all;
  }

  // Median time of each candidate in seconds. Small calls are timed several at once: a rank that is early or late by one
  // wake-up would otherwise decide.
  std::vector<double> measure(const Command& command) {
    const std::vector<TableRow> all = candidates(command);
    const int calls = command.bytes < kLargeBytes ? 8 : 1;
    std::vector<std::vector<double>> times(all.size());
    prepare(command.bytes / 2);
    for (int64_t round = -1; round < command.rounds; ++round) {  // the first one warms up
      for (std::size_t i = 0; i < all.size(); ++i) {
        const auto begin = Clock::now();
        for (int call = 0; call < calls; ++call) {
          communicator_.run_as(request(command.bytes / 2, all[i].path == Path::kCoded), all[i]);
        }
        if (round >= 0) times[i].push_back(Seconds(Clock::now() - begin).count() / calls);
      }
    }
    std::vector<double> medians;
    for (std::vector<double>& of_one : times) {
      const auto middle = of_one.begin() + static_cast<std::ptrdiff_t>(of_one.size() / 2);
      std::ranges::nth_element(of_one, middle);
      medians.push_back(*middle);
    }
    return medians;
  }

  void prepare(int64_t count) {
    if (static_cast<int64_t>(in_.size()) >= count) return;
    uint32_t state = 12345U + static_cast<uint32_t>(communicator_.rank());
    in_.resize(static_cast<std::size_t>(count));
    for (uint16_t& x : in_) {
      state = state * 1664525U + 1013904223U;
      x = float_to_bf16(static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31F);
    }
    out_.resize(in_.size());
    feedback_ = std::make_shared<Feedback>(count, communicator_.rank(), communicator_.size(), Store::kInt8);
  }

  Request request(int64_t count, bool coded) {
    if (coded) feedback_->reset();
    const GroupLayout layout(count, 0);
    return {.wish = {.count = count, .format = {coded ? 4 : kExactBits, true}, .bits_given = true, .feedback = coded},
            .partition = Partition::chunks(layout, communicator_.size()),
            .dtype = Dtype::kBfloat16,
            .in = in_.data(),
            .out = out_.data(),
            .feedback = coded ? feedback_ : nullptr};
  }

  // ---- the loop of sizes: rank 0 decides whether there is time for one more ----

  std::vector<TableRow> by_size() {
    std::vector<TableRow> rows;
    double last_cost = 0;
    for (std::size_t i = 0;; ++i) {
      Command command;
      if (leads() && i < kSizes.size() && left() > last_cost * kGrowth) {
        command = {.bytes = kSizes[i], .rounds = rounds_for(i), .path = 0, .algorithm = 0};
      }
      share(communicator_, command);
      if (command.bytes == 0) break;
      const auto begin = Clock::now();
      const std::vector<double> times = measure(command);
      last_cost = Seconds(Clock::now() - begin).count();
      if (leads()) add_row(rows, command, times);
      largest_ = command.bytes;
    }
    tune_pipeline(rows, last_cost);
    return rows;
  }

  [[nodiscard]] double left() const { return Seconds(end_ - Clock::now()).count(); }
  static int64_t rounds_for(std::size_t index) { return index < 3 ? 15 : index < 5 ? 7 : 3; }

  void add_row(std::vector<TableRow>& rows, const Command& command, const std::vector<double>& times) const {
    const std::vector<TableRow> all = candidates(command);
    std::map<Path, std::size_t> best;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto known = best.find(all[i].path);
      if (known == best.end() || times[i] < times[known->second]) best[all[i].path] = i;
    }
    const std::size_t exact = best[Path::kExact];
    const std::size_t coded = best[Path::kCoded];
    TableRow row = all[times[coded] < kWorthIt * times[exact] ? coded : exact];
    row.max_bytes = command.bytes * 2;  // up to the geometric mean of this size and the next
    const bool same = !rows.empty() && rows.back().path == row.path && rows.back().algorithm == row.algorithm;
    if (same) rows.pop_back();
    rows.push_back(row);
  }

  void tune_pipeline(std::vector<TableRow>& rows, double last_cost) {
    Command command;
    constexpr int64_t kLeastBytes = 1 << 20;
    if (leads() && largest_ >= kLeastBytes && left() > 3 * last_cost) {
      command = {.bytes = largest_,
                 .rounds = 3,
                 .tuning_pipeline = 1,
                 .path = static_cast<int64_t>(rows.back().path),
                 .algorithm = static_cast<int64_t>(rows.back().algorithm)};
    }
    share(communicator_, command);
    if (command.bytes == 0) return;
    const std::vector<double> times = measure(command);
    if (!leads()) return;
    const auto best = static_cast<std::size_t>(std::ranges::min_element(times) - times.begin());
    if (times[best] >= kWorthIt * times[0]) return;  // kBuiltIn, which suits the smaller tensors too
    const TableRow pipeline = candidates(command)[best];
    for (TableRow& row : rows) {
      row.segment_values = pipeline.segment_values;
      row.depth = pipeline.depth;
    }
  }

  // The other collectives take the floors of all-reduce: they send a part of what it does, in one of its steps.
  static void finish(std::vector<TableRow>& rows) {
    if (rows.empty()) return;
    rows.back().max_bytes = INT64_MAX;
    const std::vector<TableRow> all_reduce = rows;
    for (const Collective collective : {Collective::kReduceScatter, Collective::kAllGather}) {
      for (TableRow row : all_reduce) {
        row.collective = collective;
        row.algorithm = Algorithm::kAuto;
        const bool same = rows.back().collective == collective && rows.back().path == row.path;
        if (same) rows.pop_back();
        rows.push_back(row);
      }
    }
  }

  Communicator& communicator_;
  Clock::time_point end_;
  int64_t largest_ = 0;
  std::vector<uint16_t> in_;
  std::vector<uint16_t> out_;
  std::shared_ptr<Feedback> feedback_;
};

}  // namespace

Table measure_table(Communicator& communicator, std::chrono::milliseconds budget) {
  return Tuner(communicator, budget).run();
}

std::string share_text(Communicator& communicator, const std::string& own) {
  constexpr int64_t kMostBytes = 1 << 20;
  int64_t bytes = static_cast<int64_t>(own.size());
  share(communicator, bytes);
  require(bytes >= 0 && bytes <= kMostBytes, ErrorCode::kArgument, "table: ", bytes, " bytes of text; at most ",
          kMostBytes, " are allowed");
  std::string padded(static_cast<std::size_t>((bytes + 3) / 4 * 4), '\n');
  if (communicator.rank() == 0) std::ranges::copy(own, padded.begin());
  communicator.run(broadcast_of(padded.data(), static_cast<int64_t>(padded.size()), communicator.size()));
  padded.resize(static_cast<std::size_t>(bytes));
  return padded;
}

}  // namespace echo_comm::core
