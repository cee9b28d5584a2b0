#include "echo_perf/codec_measure.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "echo_perf/buffer.hpp"
#include "echo_perf/codec_operands.hpp"
#include "echo_perf/codec_workers.hpp"
#include "echo_perf/results.hpp"

namespace echo_comm::tools {
namespace {

class CodecRun {
 public:
  explicit CodecRun(const CodecCase& what)
      : what_(what),
        footprint_(what),
        operands_(what),
        copy_(static_cast<std::size_t>(footprint_.tensor)),
        workers_(what.threads) {
    std::memset(copy_.data(), 1, static_cast<std::size_t>(footprint_.tensor));  // touches the pages
  }

  CodecRow run(double seconds) {
    CodecRow row{what_, footprint_};
    row.wrong = count_wrong();
    measure(row, seconds);
    return row;
  }

 private:
  // One call on everything, and the same by the reference codec on the first and on the last groups.
  std::uint64_t count_wrong() {
    constexpr std::int64_t kCompared = 4096;
    const std::int64_t groups = operands_.groups();
    const std::int64_t first = std::min(groups, kCompared);
    std::vector<GroupSpan> spans = {{0, first}};
    if (first < groups) spans.push_back({std::max(first, groups - kCompared), groups});
    std::vector<Operands> slices;
    slices.reserve(spans.size());
    for (const GroupSpan& span : spans) slices.push_back(operands_.slice(span));
    call();
    std::uint64_t wrong = 0;
    for (std::size_t i = 0; i < slices.size(); ++i) {
      slices[i].run("reference", {0, spans[i].size()});
      wrong += operands_.different(slices[i], spans[i].begin);
    }
    return wrong;
  }

  // Takes turns, so that whatever else happens on this host meets both alike.
  void measure(CodecRow& row, double seconds) {
    constexpr int kWarmup = 2;
    constexpr std::size_t kLeast = 3;
    constexpr std::size_t kMost = 1000000;
    std::vector<double> copies;
    std::vector<double> calls;
    for (int i = 0; i < kWarmup; ++i) {
      copy();
      call();
    }
    const auto begin = std::chrono::steady_clock::now();
    const auto spent = [begin] {
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    };
    while (calls.size() < kLeast || (calls.size() < kMost && spent() < seconds)) {
      copies.push_back(copy());
      calls.push_back(call());
    }
    constexpr double kTick = 1e-9;  // of the clock; no time is 0
    row.memcpy_s = std::max(times_of(copies).p50, kTick);
    row.codec_s = std::max(times_of(calls).p50, kTick);
  }

  double call() {
    return workers_.run([this](int worker) { operands_.run(what_.target.c_str(), part(worker)); });
  }

  double copy() {
    return workers_.run([this](int worker) {
      const GroupSpan span = part(worker);
      const std::int64_t group = footprint_.tensor / what_.values * ECHO_GROUP;
      const std::int64_t end = std::min(span.end * group, footprint_.tensor);
      if (span.size() == 0) return;
      std::memcpy(copy_.data() + span.begin * group, operands_.tensor() + span.begin * group,
                  static_cast<std::size_t>(end - span.begin * group));
    });
  }

  [[nodiscard]] GroupSpan part(int worker) const {
    return GroupSpan{0, operands_.groups()}.part(worker, workers_.count());
  }

  const CodecCase& what_;
  Footprint footprint_;
  Operands operands_;
  Buffer copy_;
  Workers workers_;
};

}  // namespace

CodecRow measure_codec(const CodecCase& what, double seconds) { return CodecRun(what).run(seconds); }

}  // namespace echo_comm::tools
