// Lesson 2: why feedback keeps the error of many calls as small as the error of one.
//
// A transformer adds the output of each all-reduce to one residual stream. Three ranks (threads of this process) make
// 60 calls, as a model of 30 layers does, and sum the outputs up like a stream, next to what exact calls would give.
// Without feedback the rounding errors pile up. With it each call also sends what the calls before it lost, so the
// stream owes only the last call's error, and the flush, sent with 8 bits, pays most of that.
#include <cmath>
#include <cstdio>
#include <echo_comm/echo.hpp>
#include <exception>
#include <random>
#include <thread>
#include <vector>

namespace {

constexpr int kRanks = 3;
constexpr int kCalls = 60;
constexpr std::size_t kCount = 4096;

// What rank `rank` brings to call `call`; every rank can compute it, so each knows the exact sum as well.
std::vector<float> addend(int rank, int call) {
  std::mt19937 random(static_cast<unsigned>(1000 * rank + call));
  std::normal_distribution<float> normal(0.1F, 1.0F);
  std::vector<float> values(kCount);
  for (float& value : values) value = normal(random);
  return values;
}

// The stream of exact sums and of Echo's sums, and how far they are apart.
struct Stream {
  std::vector<double> exact = std::vector<double>(kCount, 0.0);
  std::vector<double> echo = std::vector<double>(kCount, 0.0);

  void add(int call, const std::vector<float>& output) {
    for (int rank = 0; rank < kRanks; ++rank) {
      const std::vector<float> values = addend(rank, call);
      for (std::size_t i = 0; i < kCount; ++i) exact[i] += values[i];
    }
    for (std::size_t i = 0; i < kCount; ++i) echo[i] += output[i];
  }

  [[nodiscard]] double error() const {  // root of the mean square
    double sum = 0;
    for (std::size_t i = 0; i < kCount; ++i) sum += (echo[i] - exact[i]) * (echo[i] - exact[i]);
    return std::sqrt(sum / kCount);
  }
};

// One pass of kCalls calls on one rank. Returns the error of its stream after each call.
std::vector<double> run_pass(echo_comm::Communicator& comm, const echo_comm::Feedback* feedback) {
  Stream stream;
  std::vector<double> errors;
  for (int call = 0; call < kCalls; ++call) {
    std::vector<float> data = addend(comm.rank(), call);
    comm.all_reduce(data, {.flush = call == kCalls - 1, .feedback = feedback});
    stream.add(call, data);
    errors.push_back(stream.error());
  }
  return errors;
}

}  // namespace

int main() try {
  std::vector<echo_comm::Communicator> comms = echo_comm::Communicator::create_all(kRanks);
  std::vector<double> without[kRanks];
  std::vector<double> with[kRanks];
  std::exception_ptr failure[kRanks];

  std::vector<std::thread> threads;
  threads.reserve(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        without[rank] = run_pass(comms[rank], nullptr);
        const echo_comm::Feedback feedback(comms[rank], kCount);
        with[rank] = run_pass(comms[rank], &feedback);
      } catch (...) {
        failure[rank] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : failure) {
    if (error) std::rethrow_exception(error);
  }

  std::printf("error of the stream after so many calls (root mean square, %d ranks, 4 bits)\n\n", kRanks);
  std::printf("%6s %18s %18s\n", "calls", "without feedback", "with feedback");
  for (const int calls : {1, 2, 5, 10, 20, 40, 59, 60}) {
    std::printf("%6d %18.4f %18.4f%s\n", calls, without[0][calls - 1], with[0][calls - 1],
                calls == kCalls ? "   (flush: 8 bits)" : "");
  }
  // Every rank holds the same bytes, so every rank saw the same errors.
  const bool same = without[0] == without[1] && without[0] == without[2] && with[0] == with[1] && with[0] == with[2];
  const bool better = with[0].back() < 0.25 * without[0].back();
  if (!same) std::printf("\nthe ranks differ\n");
  return same && better ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "02_feedback: %s\n", error.what());
  return 1;
}
