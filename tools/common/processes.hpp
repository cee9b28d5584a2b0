// Ranks as processes of this host: started by fork, watched by the parent, never left behind.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace echo_comm::tools {

// How a process ended.
struct Outcome {
  bool passed = false;
  int signal = 0;        // that ended it, or 0
  bool overdue = false;  // killed by the parent, because it did not end after another failed
  std::string text;      // what its body threw

  // "was ended by signal 9 (Killed)" and the like, or what it threw.
  [[nodiscard]] std::string reason() const;
};

// The parent must have one thread. Children die with the parent, and the destructor kills those that still run.
class Processes {
 public:
  using Body = std::function<void(int index)>;

  // Forks `count` children; each runs body(index) and ends. Throws std::runtime_error when one cannot be started.
  Processes(int count, const Body& body);
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;
  ~Processes();

  // Waits for all. After the first that did not pass the others have `grace` to end by themselves, then they are
  // killed (overdue). `on_wake` is called whenever the descriptor `wake` is readable, and once at the end; -1: never.
  std::vector<Outcome> wait(std::chrono::milliseconds grace, int wake = -1, const std::function<void()>& on_wake = {});

 private:
  struct Child {
    pid_t pid = -1;
    int pipe = -1;  // read end; the end of file says that the child has ended
    Outcome outcome;
  };
  void start(Child& child, int index, const Body& body);
  static void read_from(Child& child);

  std::vector<Child> children_;
};

// "PREFIX-" and 16 random hexadecimal digits: a name that no other job has.
std::string random_name(const std::string& prefix);

}  // namespace echo_comm::tools
