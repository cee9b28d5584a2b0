#include "common/program.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

namespace echo_comm::tools {
namespace {

constexpr int kNotThere = 127;

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::system_category(), what); }

// A file in memory, so that neither side waits for the other.
int file_with(const std::string& input) {
  const int file = memfd_create("echo_tools_input", MFD_CLOEXEC);
  if (file < 0) fail("memfd_create");
  for (std::size_t done = 0; done < input.size();) {
    const ssize_t wrote = write(file, input.data() + done, input.size() - done);
    if (wrote <= 0) {
      close(file);
      fail("input of a program");
    }
    done += static_cast<std::size_t>(wrote);
  }
  lseek(file, 0, SEEK_SET);
  return file;
}

}  // namespace

int run_program(const std::vector<std::string>& command, const std::string& input) {
  std::vector<char*> arguments;
  arguments.reserve(command.size() + 1);
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const int file = file_with(input);
  std::fflush(nullptr);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);  // it may have something to clean up
    if (getppid() != parent) _exit(kNotThere);
    dup2(file, STDIN_FILENO);
    execvp(arguments[0], arguments.data());
    _exit(kNotThere);
  }
  const int error = errno;
  close(file);
  if (child < 0) throw std::system_error(error, std::system_category(), "fork");
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string own_path() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

}  // namespace echo_comm::tools
