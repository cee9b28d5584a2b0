#include "testing/processes.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace echo_comm::testing {
namespace {

// In a child: sends each failed expectation to the parent, instead of printing it among the parent's output.
class Reporter : public ::testing::EmptyTestEventListener {
 public:
  explicit Reporter(int pipe) : pipe_(pipe) {}

  void report(const std::string& line) {
    reported_ = true;
    const std::string text = line + "\n";
    std::size_t sent = 0;
    while (sent < text.size()) {
      const ssize_t wrote = write(pipe_, text.data() + sent, text.size() - sent);
      if (wrote < 0 && errno != EINTR) return;
      if (wrote > 0) sent += static_cast<std::size_t>(wrote);
    }
  }
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    const std::string file = result.file_name() != nullptr ? result.file_name() : "?";
    report(file + ":" + std::to_string(result.line_number()) + ": " + result.message());
  }
  [[nodiscard]] bool reported() const { return reported_; }

 private:
  int pipe_;
  bool reported_ = false;
};

[[noreturn]] void run_child(int rank, int size, const RankBody& body, int pipe, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  auto* reporter = new Reporter(pipe);
  listeners.Append(reporter);
  try {
    body(rank, size);
  } catch (...) {
    reporter->report("threw: " + text_of_current_exception());
  }
  std::fflush(nullptr);
  _exit(reporter->reported() ? 1 : 0);  // not exit(): atexit handlers and leak checks belong to the parent
}

int threads_of_this_process() {
  std::ifstream status("/proc/self/status");
  std::string word;
  int threads = 1;
  while (status >> word) {
    if (word == "Threads:") status >> threads;
  }
  return threads;
}

}  // namespace

ProcessGroup::ProcessGroup(int size, const RankBody& body) : ranks_(static_cast<std::size_t>(size)) {
  // A fork copies one thread; locks that others hold would stay locked in the child.
  if (!kThreadSanitizer && threads_of_this_process() != 1) {
    std::fprintf(stderr, "ProcessGroup: the test forks while it has several threads\n");
    std::abort();
  }
  std::fflush(nullptr);
  const pid_t parent = getpid();
  for (int r = 0; r < size; ++r) {
    Rank& rank = ranks_[static_cast<std::size_t>(r)];
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed");
    rank.pid = fork();
    if (rank.pid == 0) {
      for (const Rank& other : ranks_) {
        if (other.report >= 0) close(other.report);
      }
      close(ends[0]);
      run_child(r, size, body, ends[1], parent);
    }
    close(ends[1]);
    rank.report = ends[0];
    if (rank.pid < 0) throw std::runtime_error("fork failed");
  }
}

ProcessGroup::~ProcessGroup() {
  for (Rank& rank : ranks_) {
    if (!rank.ended && rank.pid > 0) {
      ::kill(rank.pid, SIGKILL);
      waitpid(rank.pid, nullptr, 0);
    }
    if (rank.report >= 0) close(rank.report);
  }
}

void ProcessGroup::kill(int rank, int signal) const { ::kill(pid(rank), signal); }

// Reads what is there and notes who ended; true when all did. The last report is read after the end was seen.
bool ProcessGroup::collect() {
  bool all = true;
  for (Rank& rank : ranks_) {
    if (rank.ended) continue;
    int status = 0;
    const bool ended = waitpid(rank.pid, &status, WNOHANG) == rank.pid;
    pollfd event{rank.report, POLLIN, 0};
    char buffer[4096];
    while (poll(&event, 1, 0) == 1 && (event.revents & POLLIN) != 0) {
      const ssize_t got = read(rank.report, buffer, sizeof buffer);
      if (got <= 0) break;
      rank.result.text.append(buffer, static_cast<std::size_t>(got));
    }
    all = all && ended;
    if (!ended) continue;
    rank.ended = true;
    rank.result.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    rank.result.passed = WIFEXITED(status) && WEXITSTATUS(status) == 0 && rank.result.text.empty();
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0 && rank.result.text.empty()) {
      rank.result.text = "ended with code " + std::to_string(WEXITSTATUS(status)) + "\n";
    }
  }
  return all;
}

std::vector<RankResult> ProcessGroup::wait(std::chrono::seconds watchdog) {
  const auto end = std::chrono::steady_clock::now() + watchdog;
  bool killed = false;
  while (!collect()) {
    if (!killed && std::chrono::steady_clock::now() > end) {
      killed = true;
      for (std::size_t r = 0; r < ranks_.size(); ++r) {
        if (ranks_[r].ended) continue;
        ADD_FAILURE() << "watchdog: rank " << r << " still runs after " << watchdog.count() << " s";
        ::kill(ranks_[r].pid, SIGKILL);
      }
    }
    std::vector<pollfd> events;
    for (const Rank& rank : ranks_) {
      if (!rank.ended) events.push_back({rank.report, POLLIN, 0});
    }
    poll(events.data(), events.size(), 5);
  }
  std::vector<RankResult> results;
  for (const Rank& rank : ranks_) results.push_back(rank.result);
  return results;
}

void spawn_processes(int size, const RankBody& body, std::chrono::seconds watchdog) {
  ProcessGroup group(size, body);
  const std::vector<RankResult> results = group.wait(watchdog);
  for (int r = 0; r < size; ++r) {
    const RankResult& result = results[static_cast<std::size_t>(r)];
    if (result.passed) continue;
    ADD_FAILURE() << "rank " << r << " of " << size
                  << (result.signal != 0 ? " was ended by signal " + std::to_string(result.signal) : " failed") << "\n"
                  << result.text;
  }
}

bool child_can(const std::function<bool()>& attempt) {
  ProcessGroup group(1, [&](int, int) {
    if (!attempt()) throw std::runtime_error("cannot");
  });
  return group.wait()[0].passed;
}

int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

int open_descriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count - 1;  // the directory itself was open
}

int mappings_with(const std::string& part) {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  int count = 0;
  while (std::getline(maps, line)) count += line.find(part) != std::string::npos ? 1 : 0;
  return count;
}

}  // namespace echo_comm::testing
