#include "echo_info/network_checks.hpp"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>

#include "common/processes.hpp"
#include "echo_comm/echo.hpp"

#if __has_include(<gloo/config.h>)
#include <gloo/config.h>
#endif

namespace echo_comm::tools {
namespace {

namespace fs = std::filesystem;

constexpr const char* kAnswer = "/doctor.answer";

// Closes at the end.
struct Socket {
  explicit Socket(int family) : number(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {}
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() {
    if (number >= 0) close(number);
  }
  int number;
};

std::string reason() { return std::system_category().message(errno); }

}  // namespace

// A library without Gloo says so for any directory; one with it complains about a directory that is not there.
bool gloo_built_in() {
  echo_comm_t comm = nullptr;
  const echo_result_t result = echo_comm_create("gloo+file:///nonexistent/echo-doctor?rank=0&size=1", nullptr, &comm);
  echo_comm_destroy(comm);
  return !(result == ECHO_ERROR_SYSTEM && std::string(echo_last_error()).find("built without") != std::string::npos);
}

std::string gloo_headers() {
#ifdef GLOO_VERSION_MAJOR
  return "; Gloo " + std::to_string(GLOO_VERSION_MAJOR) + "." + std::to_string(GLOO_VERSION_MINOR) + "." +
         std::to_string(GLOO_VERSION_PATCH) + " when this was built";
#else
  return "";
#endif
}

std::string loaded_files(const std::string& word) {
  std::ifstream maps("/proc/self/maps");
  std::set<std::string> files;
  for (std::string line; std::getline(maps, line);) {
    const std::size_t slash = line.find('/');
    if (slash == std::string::npos) continue;
    const std::string path = line.substr(slash);
    if (path.substr(path.rfind('/')).find(word) != std::string::npos) files.insert(path);
  }
  std::string list;
  for (const std::string& file : files) list += (list.empty() ? "" : ", ") + file;
  return list;
}

std::string listen_problem(const SocketAddress& address) {
  SocketAddress own = address;
  const Socket listener(own.family());
  if (listener.number < 0) return "socket: " + reason();
  if (bind(listener.number, own.get(), own.length) != 0) return "bind: " + reason();
  if (listen(listener.number, 1) != 0) return "listen: " + reason();
  if (getsockname(listener.number, own.get(), &own.length) != 0) return "getsockname: " + reason();
  const Socket caller(own.family());
  if (connect(caller.number, own.get(), own.length) != 0 && errno != EINPROGRESS) return "connect: " + reason();
  pollfd event{listener.number, POLLIN, 0};
  constexpr int kPatienceMs = 2000;
  if (poll(&event, 1, kPatienceMs) != 1) return "a connection to it did not arrive within 2 s";
  return "";
}

TemporaryFolder::TemporaryFolder() : path_((fs::temp_directory_path() / random_name("echo-doctor")).string()) {
  fs::create_directory(path_);
  fs::permissions(path_, fs::perms::owner_all);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void TemporaryFolder::write(const std::string& answer) const { std::ofstream(path_ + kAnswer) << answer; }

std::string TemporaryFolder::read() const {
  std::ifstream file(path_ + kAnswer);
  std::string answer;
  std::getline(file, answer);
  return answer;
}

}  // namespace echo_comm::tools
