// Ranks as processes. Forks, so the parent must have one thread; the harness refuses otherwise.
#pragma once

#include <sys/mman.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <new>
#include <string>
#include <vector>

#include "testing/ranks.hpp"

namespace echo_comm::testing {

// How a rank ended.
struct RankResult {
  bool passed = false;  // exit code 0, nothing reported
  int signal = 0;       // that ended it, or 0
  std::string text;     // exceptions and failed expectations, one per line
};

// Processes under way. Its destructor kills what still runs.
class ProcessGroup {
 public:
  // Forks; each child runs body(rank, size) and ends.
  ProcessGroup(int size, const RankBody& body);
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;
  ~ProcessGroup();

  [[nodiscard]] pid_t pid(int rank) const { return ranks_[static_cast<std::size_t>(rank)].pid; }
  void kill(int rank, int signal) const;
  // Waits for all. When the watchdog expires the rest is killed and the test fails.
  std::vector<RankResult> wait(std::chrono::seconds watchdog = kWatchdog);

 private:
  struct Rank {
    pid_t pid = -1;
    int report = -1;  // read end of the pipe
    bool ended = false;
    RankResult result;
  };
  bool collect();

  std::vector<Rank> ranks_;
};

// Runs the body as `size` processes; each that did not pass fails the test.
void spawn_processes(int size, const RankBody& body, std::chrono::seconds watchdog = kWatchdog);

// Tries in a child process what may not be permitted here (namespaces, another user), without effect on this one.
bool child_can(const std::function<bool()>& attempt);

// 64-bit numbers that all processes forked after its creation share, all 0: for conditions across ranks.
class SharedCells {
 public:
  static constexpr std::size_t kCells = 512;

  SharedCells() {
    void* memory = mmap(nullptr, sizeof(Cells), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    cells_ = new (memory) Cells{};
  }
  SharedCells(const SharedCells&) = delete;
  SharedCells& operator=(const SharedCells&) = delete;
  ~SharedCells() { munmap(cells_, sizeof(Cells)); }

  std::atomic<int64_t>& operator[](int cell) { return cells_->cell[static_cast<std::size_t>(cell)]; }

 private:
  struct Cells {
    std::atomic<int64_t> cell[kCells];
  };
  Cells* cells_;
};

// Nanoseconds on the clock that all processes share.
int64_t now_ns();

// Files under /proc/self/fd; mappings whose line in /proc/self/maps contains `part`.
int open_descriptors();
int mappings_with(const std::string& part);

}  // namespace echo_comm::testing
