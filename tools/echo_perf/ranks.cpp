#include "echo_perf/ranks.hpp"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "common/processes.hpp"
#include "echo_perf/measure.hpp"

namespace echo_comm::tools {
namespace {

Config config_of(const Options& options) { return {.timeout = std::chrono::seconds(options.timeout_s)}; }

void run_process(const Options& options, SharedResults& results, const std::string& name, int rank) {
  const std::string url = "shm://" + name + "?rank=" + std::to_string(rank) + "&size=" + std::to_string(options.ranks);
  RankRun(options, results, Communicator::create(url, config_of(options))).run();
}

// All ranks as threads of this process. A rank that fails destroys its communicator, which ends the others.
void run_threads(const Options& options, SharedResults& results) {
  std::vector<Communicator> comms = Communicator::create_all(options.ranks, config_of(options));
  std::vector<std::string> failures(comms.size());
  std::vector<std::thread> threads;
  threads.reserve(comms.size());
  for (std::size_t rank = 0; rank < comms.size(); ++rank) {
    threads.emplace_back([&, rank, comm = std::move(comms[rank])]() mutable {
      try {
        RankRun(options, results, std::move(comm)).run();
      } catch (const std::exception& error) {
        failures[rank] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::string text;
  for (std::size_t rank = 0; rank < failures.size(); ++rank) {
    if (!failures[rank].empty())
      text += (text.empty() ? "rank " : "; rank ") + std::to_string(rank) + ": " + failures[rank];
  }
  if (!text.empty()) throw std::runtime_error(text);
}

}  // namespace

JobResult run_job(const Options& options, const std::function<void(const Row& row)>& on_row) {
  SharedResults results(options);
  const std::string name = random_name("echo-perf");
  const bool threads = options.kind == TransportKind::kInproc;
  Processes processes(threads ? 1 : options.ranks, [&](int rank) {
    if (threads)
      run_threads(options, results);
    else
      run_process(options, results, name, rank);
  });

  JobResult job;
  const auto take_rows = [&] {
    results.quiet();
    for (const Row& row : results.rows()) {
      if (row.bytes <= (job.rows.empty() ? 0 : job.rows.back().bytes)) continue;  // taken before; sizes ascend
      job.rows.push_back(row);
      on_row(row);
    }
  };
  const auto grace = std::chrono::seconds(options.timeout_s + 5);
  const std::vector<Outcome> outcomes = processes.wait(grace, results.wake(), take_rows);
  for (const bool killed : {true, false}) {
    for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
      const Outcome& outcome = outcomes[rank];
      if (outcome.passed || (outcome.signal != 0 && !outcome.overdue) != killed) continue;
      std::string line = threads ? "the process of all ranks" : "rank " + std::to_string(rank);
      line += (killed || outcome.overdue ? " " : ": ") + outcome.reason();
      job.failures.push_back(threads && !killed ? outcome.reason() : line);  // the threads have named themselves
    }
  }
  return job;
}

}  // namespace echo_comm::tools
