#include "transport/shm/memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <limits>
#include <system_error>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U  // Linux 6.3
#endif

namespace echo_comm::core {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

[[noreturn]] void fail_memory(const Region& region, const std::string& name, const std::string& reason) {
  fail(ErrorCode::kSystem, "shm: '", name, "' needs ", region.bytes(), " bytes of shared memory for ", region.size(),
       " ranks: ", reason, "; raise the memory limit or set ECHO_SHM_SLOT_BYTES below ", region.slot_bytes());
}

std::string reason_of(int error_number) { return std::system_category().message(error_number); }

// Value of the line "KEY: N kB" of /proc/meminfo, in bytes; -1 when there is none.
int64_t memory_line(const std::string& key) {
  std::ifstream file("/proc/meminfo");
  std::string word;
  int64_t kilobytes = 0;
  while (file >> word) {
    if (word == key && file >> kilobytes) return kilobytes * 1024;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return -1;
}

// Smallest memory limit of this process's control groups. "max" is no number and counts as none.
int64_t memory_limit() {
  int64_t smallest = std::numeric_limits<int64_t>::max();
  const auto consider = [&](const std::string& path) {
    std::ifstream file(path);
    int64_t bytes = 0;
    if (file >> bytes) smallest = std::min(smallest, bytes);
  };
  consider("/sys/fs/cgroup/memory/memory.limit_in_bytes");
  std::ifstream groups("/proc/self/cgroup");
  std::string line;
  while (std::getline(groups, line)) {
    if (line.rfind("0::", 0) != 0) continue;
    for (std::string path = line.substr(3);; path.resize(path.rfind('/'))) {
      consider("/sys/fs/cgroup" + path + "/memory.max");
      if (path.find('/') == std::string::npos) break;
    }
  }
  return smallest;
}

// What can be known to fail is refused here: the kernel would answer with a signal (file size limit) or with the
// out-of-memory killer (memory) instead of an error.
void check_room(const Region& region, const std::string& name) {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < static_cast<rlim_t>(region.bytes())) {
    fail_memory(region, name, text("the file size limit (ulimit -f, RLIMIT_FSIZE) is ", limit.rlim_cur, " bytes"));
  }
  const int64_t available = memory_line("MemAvailable:");
  if (available >= 0) {
    const int64_t most = available + std::max<int64_t>(0, memory_line("SwapFree:"));
    if (most < region.bytes()) fail_memory(region, name, text(most, " bytes are available on this host"));
  }
  const int64_t allowed = memory_limit();
  if (allowed < region.bytes()) fail_memory(region, name, text("the control group's limit is ", allowed, " bytes"));
}

// In pieces, because a signal makes the kernel give up the piece it is at.
void reserve(int file, const Region& region, int rank, const std::string& name) {
  constexpr int64_t kPiece = 4 << 20;
  const int64_t end = region.section_end(rank);
  for (int64_t at = region.section_begin(rank); at < end;) {
    const int64_t bytes = std::min(kPiece, end - at);
    if (fallocate(file, 0, at, bytes) == 0) {
      at += bytes;
    } else if (errno != EINTR) {
      fail_memory(region, name, reason_of(errno));
    }
  }
}

struct flock lock_of(int rank) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

}  // namespace

Fd create_memory_file(const Region& region, const std::string& name) {
  check_room(region, name);
  const std::string label = "echo_comm:" + name;  // shows in /proc/PID/maps, means nothing
  Fd file(memfd_create(label.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL));
  if (!file && errno == EINVAL) file = Fd(memfd_create(label.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) fail_errno(ErrorCode::kSystem, "shm: memfd_create", errno);
  if (ftruncate(file.get(), region.bytes()) != 0) fail_memory(region, name, reason_of(errno));
  if (fcntl(file.get(), F_ADD_SEALS, kSeals) != 0) fail_errno(ErrorCode::kSystem, "shm: sealing a memfd", errno);
  return file;
}

SharedMemory::SharedMemory(Fd file, const Region& region, int rank, const std::string& name) : file_(std::move(file)) {
  struct stat status {};
  const int seals = fcntl(file_.get(), F_GET_SEALS);
  require(
      fstat(file_.get(), &status) == 0 && status.st_size == region.bytes() && seals >= 0 && (seals & kSeals) == kSeals,
      ErrorCode::kMismatch, "shm: '", name, "': got a file of ", status.st_size, " bytes, expected a sealed one of ",
      region.bytes(), "; all ranks must load the same library");
  const struct flock lock = lock_of(rank);
  if (fcntl(file_.get(), F_SETLK, &lock) != 0) {
    fail_errno(ErrorCode::kSystem, text("shm: '", name, "': lock of rank ", rank), errno);
  }
  reserve(file_.get(), region, rank, name);
  memory_ = Mapping::shared(file_.get(), region.bytes());
  if (memory_.bytes() == nullptr) fail_memory(region, name, "cannot be mapped (ulimit -v?): " + reason_of(errno));
}

bool SharedMemory::died(int rank) const noexcept {
  struct flock lock = lock_of(rank);
  return fcntl(file_.get(), F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

}  // namespace echo_comm::core
