// Runs what one rank does with its transport on `size` ranks. Needs the room transport.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "testing/processes.hpp"
#include "testing/ranks.hpp"
#include "transport/transport.hpp"

namespace echo_comm::testing {

using TransportBody = std::function<void(core::Transport& transport)>;

// Ranks are threads over inproc, or processes over shm with a name of their own. slot_bytes 0: by size. The transport
// of a rank is destroyed when its body ends, also by an exception, so that the others do not wait for it.
void over_inproc(int size, const TransportBody& body, int64_t slot_bytes = 0);
void over_shm(int size, const TransportBody& body, int64_t slot_bytes = 0);

// Threads over Gloo on the loopback interface; processes over Gloo that meet in a fresh directory.
void over_gloo_in_process(int size, const TransportBody& body, int64_t slot_bytes = 0);
void over_gloo(int size, const TransportBody& body, int64_t slot_bytes = 0);

enum class Kind { kInproc, kShm, kGlooInProcess, kGloo };
const char* name_of(Kind kind);
bool forks(Kind kind);  // ranks are processes
// Why this kind cannot be tested here, or nothing when it can: the thread sanitizer does not fork, Gloo is missing.
std::string cannot_test(Kind kind);
void over(Kind kind, int size, const TransportBody& body, int64_t slot_bytes = 0);

// An empty directory of this user alone, removed at the end.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace echo_comm::testing
