#include "echo_perf/ranks.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <stdexcept>
#include <thread>

#include "common/processes.hpp"
#include "echo_perf/measure.hpp"

namespace echo_comm::tools {
namespace {

Config config_of(const Options& options) {
  Config config{.timeout = std::chrono::seconds(options.timeout_s)};
  if (!options.table.empty()) config.table = options.table.c_str();
  if (options.tune) config.tune = ECHO_ON;
  return config;
}

// Where the ranks of a job meet: a name, or a directory of this user alone that goes with the job.
class Meeting {
 public:
  explicit Meeting(const Options& options) : options_(options), place_(random_name("echo-perf")) {
    if (options.kind != TransportKind::kGloo) return;
    const bool own = options.rank < 0;
    place_ = own ? (std::filesystem::temp_directory_path() / place_).string()
                 : std::filesystem::absolute(options.directory).lexically_normal().string();
    if (!own) return;
    std::filesystem::create_directory(place_);
    std::filesystem::permissions(place_, std::filesystem::perms::owner_all);
    remove_ = true;
  }
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;
  ~Meeting() {
    std::error_code ignored;
    if (remove_) std::filesystem::remove_all(place_, ignored);
  }

  [[nodiscard]] std::string url(int rank) const {
    const std::string who = "?rank=" + std::to_string(rank) + "&size=" + std::to_string(options_.ranks);
    if (options_.kind != TransportKind::kGloo) return "shm://" + place_ + who;
    return "gloo+file://" + place_ + who + (options_.interface.empty() ? "" : "&iface=" + options_.interface);
  }

 private:
  const Options& options_;
  std::string place_;
  bool remove_ = false;
};

void run_rank(const Options& options, Board& board, Communicator comm) {
  const bool tells = comm.rank() == 0;
  RankRun run(options, std::move(comm));
  if (tells) board.set_table(run.table());
  run.run([&](const Row& row) {
    if (tells) board.add(row);
  });
}

// All ranks as threads of this process. A rank that fails destroys its communicator, which ends the others.
void run_threads(const Options& options, Board& board) {
  std::vector<Communicator> comms = Communicator::create_all(options.ranks, config_of(options));
  std::vector<std::string> failures(comms.size());
  std::vector<std::thread> threads;
  threads.reserve(comms.size());
  for (std::size_t rank = 0; rank < comms.size(); ++rank) {
    threads.emplace_back([&, rank, comm = std::move(comms[rank])]() mutable {
      try {
        run_rank(options, board, std::move(comm));
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

// This process is a rank; the others are somebody else's.
JobResult run_outside(const Options& options, const Listener& listener) {
  JobResult job;
  const Meeting meeting(options);
  try {
    RankRun run(options, Communicator::create(meeting.url(options.rank), config_of(options)));
    job.table = run.table();
    listener.on_table(job.table);
    run.run([&](const Row& row) {
      job.rows.push_back(row);
      listener.on_row(row);
    });
  } catch (const std::exception& error) {
    job.failures.push_back("rank " + std::to_string(options.rank) + ": " + error.what());
  }
  return job;
}

void tell_failures(const std::vector<Outcome>& outcomes, bool threads, JobResult& job) {
  for (const bool killed : {true, false}) {
    for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
      const Outcome& outcome = outcomes[rank];
      if (outcome.passed || (outcome.signal != 0 && !outcome.overdue) != killed) continue;
      std::string line = threads ? "the process of all ranks" : "rank " + std::to_string(rank);
      line += (killed || outcome.overdue ? " " : ": ") + outcome.reason();
      job.failures.push_back(threads && !killed ? outcome.reason() : line);  // the threads have named themselves
    }
  }
}

}  // namespace

JobResult run_job(const Options& options, const Listener& listener) {
  if (options.rank >= 0) return run_outside(options, listener);
  Board board(options.sizes.size());
  const Meeting meeting(options);
  const bool threads = options.kind == TransportKind::kInproc;
  Processes processes(threads ? 1 : options.ranks, [&](int rank) {
    if (threads)
      run_threads(options, board);
    else
      run_rank(options, board, Communicator::create(meeting.url(rank), config_of(options)));
  });

  JobResult job;
  const auto take_rows = [&] {
    board.quiet();
    for (const Row& row : board.rows()) {
      if (row.bytes <= (job.rows.empty() ? 0 : job.rows.back().bytes)) continue;  // taken before; sizes ascend
      if (job.rows.empty()) {
        job.table = board.table();
        listener.on_table(job.table);
      }
      job.rows.push_back(row);
      listener.on_row(row);
    }
  };
  const auto grace = std::chrono::seconds(options.timeout_s + 5);
  tell_failures(processes.wait(grace, board.wake(), take_rows), threads, job);
  return job;
}

}  // namespace echo_comm::tools
