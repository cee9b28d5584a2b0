#include "common/processes.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <random>
#include <stdexcept>
#include <system_error>

namespace echo_comm::tools {
namespace {

using Clock = std::chrono::steady_clock;

void send_all(int pipe, const std::string& text) {
  std::size_t sent = 0;
  while (sent < text.size()) {
    const ssize_t wrote = write(pipe, text.data() + sent, text.size() - sent);
    if (wrote < 0 && errno != EINTR) return;
    if (wrote > 0) sent += static_cast<std::size_t>(wrote);
  }
}

// _exit, not exit: what is registered to run at exit belongs to the parent.
[[noreturn]] void run_child(int index, const Processes::Body& body, int pipe, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // it ended before the line above
  try {
    body(index);
    _exit(0);
  } catch (const std::exception& error) {
    send_all(pipe, error.what());
  } catch (...) {
    send_all(pipe, "unknown exception");
  }
  _exit(1);
}

}  // namespace

std::string Outcome::reason() const {
  if (overdue) return "did not end after another failed, and was killed";
  if (signal == 0) return text;
  return "was ended by signal " + std::to_string(signal) + " (" + strsignal(signal) + ")";
}

Processes::Processes(int count, const Body& body) : children_(static_cast<std::size_t>(count)) {
  std::fflush(nullptr);  // else each child would hold a copy of what is not printed yet
  for (int index = 0; index < count; ++index) start(children_[static_cast<std::size_t>(index)], index, body);
}

void Processes::start(Child& child, int index, const Body& body) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) throw std::system_error(errno, std::system_category(), "pipe");
  const pid_t parent = getpid();
  child.pid = fork();
  if (child.pid == 0) {
    for (const Child& other : children_) {
      if (other.pipe >= 0) close(other.pipe);
    }
    close(ends[0]);
    run_child(index, body, ends[1], parent);
  }
  const int error = errno;
  close(ends[1]);  // now the child alone holds it
  child.pipe = ends[0];
  if (child.pid < 0) throw std::system_error(error, std::system_category(), "fork");
}

Processes::~Processes() {
  for (Child& child : children_) {
    if (child.pipe < 0) continue;
    if (child.pid > 0) {
      kill(child.pid, SIGKILL);
      waitpid(child.pid, nullptr, 0);
    }
    close(child.pipe);
  }
}

// Takes what the child sent; at the end of file, its exit status.
void Processes::read_from(Child& child) {
  std::array<char, 4096> buffer{};
  const ssize_t got = read(child.pipe, buffer.data(), buffer.size());
  if (got > 0) {
    child.outcome.text.append(buffer.data(), static_cast<std::size_t>(got));
    return;
  }
  if (got < 0 && errno == EINTR) return;
  close(child.pipe);
  child.pipe = -1;
  int status = 0;
  while (waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {
  }
  child.outcome.passed = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  child.outcome.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  if (!child.outcome.passed && child.outcome.text.empty()) {
    child.outcome.text = "ended with code " + std::to_string(WEXITSTATUS(status));
  }
}

std::vector<Outcome> Processes::wait(std::chrono::milliseconds grace, int wake, const std::function<void()>& on_wake) {
  constexpr auto kNever = Clock::time_point::max();
  auto kill_at = kNever;
  while (true) {
    std::vector<pollfd> events{{wake, POLLIN, 0}};  // poll ignores -1
    for (const Child& child : children_) events.push_back({child.pipe, POLLIN, 0});
    bool running = false;
    for (const Child& child : children_) running = running || child.pipe >= 0;
    if (!running) break;

    int timeout = -1;
    if (kill_at != kNever) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(kill_at - Clock::now()).count();
      timeout = static_cast<int>(std::max<decltype(left)>(0, left));
    }
    const int ready = poll(events.data(), events.size(), timeout);
    if (ready == 0) {
      for (Child& child : children_) {
        if (child.pipe < 0) continue;
        child.outcome.overdue = true;
        kill(child.pid, SIGKILL);
      }
      kill_at = kNever;
    }
    if (ready <= 0) continue;
    if (events[0].revents != 0) on_wake();
    for (std::size_t i = 0; i < children_.size(); ++i) {
      if (events[i + 1].revents == 0) continue;
      read_from(children_[i]);
      const bool failed = children_[i].pipe < 0 && !children_[i].outcome.passed;
      if (failed && kill_at == kNever) kill_at = Clock::now() + grace;
    }
  }
  if (wake >= 0) on_wake();
  std::vector<Outcome> outcomes;
  for (const Child& child : children_) outcomes.push_back(child.outcome);
  return outcomes;
}

std::string random_name(const std::string& prefix) {
  std::random_device device;
  std::array<char, 20> digits{};
  std::snprintf(digits.data(), digits.size(), "-%08x%08x", device(), device());
  return prefix + digits.data();
}

}  // namespace echo_comm::tools
