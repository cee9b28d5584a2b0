#include "transport/gloo/job.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <span>
#include <system_error>
#include <thread>

#include "base/error.hpp"

namespace echo_comm::core {
namespace {

constexpr const char* kMagic = "echo_comm job 1 ";  // the number is that of the file's form
constexpr std::size_t kIdDigits = 32;
constexpr std::size_t kFileBytes = 16 + 3 * kIdDigits;

std::string lock_file(const std::string& directory) { return directory + "/echo_comm.lock"; }
std::string job_file(const std::string& directory) { return directory + "/echo_comm.job"; }

std::string reason(int error_number) { return std::system_category().message(error_number); }

void fill_random(std::span<unsigned char> bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = getrandom(bytes.data() + done, bytes.size() - done, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) fail_errno(ErrorCode::kSystem, "gloo: random numbers for the job's token", errno);
    done += static_cast<std::size_t>(got);
  }
}

std::string to_hex(std::span<const unsigned char> bytes) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string hex;
  for (const unsigned char byte : bytes) {
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

int digit_of(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

bool from_hex(const std::string& hex, std::span<unsigned char> bytes) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const int high = digit_of(hex[2 * i]);
    const int low = digit_of(hex[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    bytes[i] = static_cast<unsigned char>(high << 4 | low);
  }
  return true;
}

void write_all(int file, const std::string& path, const std::string& content) {
  std::size_t done = 0;
  while (done < content.size()) {
    const ssize_t wrote = write(file, content.data() + done, content.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      const int error = errno;
      close(file);
      fail_errno(ErrorCode::kSystem, text("gloo: ", path), error);
    }
    done += static_cast<std::size_t>(wrote);
  }
}

}  // namespace

Tokens Tokens::random() {
  Tokens tokens;
  fill_random(tokens.connect);
  fill_random(tokens.accept);
  return tokens;
}

std::string job_folder(const std::string& directory, const std::string& id) { return directory + "/echo_comm-" + id; }

void check_directory(const std::string& directory) {
  require(directory.starts_with('/'), ErrorCode::kArgument, "gloo: the directory '", directory,
          "' must be absolute (gloo+file:///shared/dir); the ranks may have different working directories");
  struct stat status {};
  require(stat(directory.c_str(), &status) == 0, ErrorCode::kArgument, "gloo: the directory '", directory,
          "': ", reason(errno), "; create one that all ranks see");
  require(S_ISDIR(status.st_mode), ErrorCode::kArgument, "gloo: '", directory, "' is not a directory");
  require(access(directory.c_str(), R_OK | W_OK | X_OK) == 0, ErrorCode::kArgument, "gloo: the directory '", directory,
          "' cannot be used by user ", geteuid(), ": ", reason(errno));
}

JobHost::JobHost(const std::string& directory) : directory_(directory) {
  lock();
  try {
    announce();
  } catch (...) {
    close(lock_);
    throw;
  }
}

// Whoever removed the lock file had it locked; a lock on a removed file is worth nothing: the name is looked at again.
void JobHost::lock() {
  const std::string path = lock_file(directory_);
  for (;;) {
    lock_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (lock_ < 0) fail_errno(ErrorCode::kSystem, text("gloo: ", path), errno);
    if (flock(lock_, LOCK_EX | LOCK_NB) != 0) {
      const int error = errno;
      close(lock_);
      require(error != EWOULDBLOCK, ErrorCode::kState, "gloo: another live job is gathering in '", directory_,
              "'; wait until its ranks are connected, or use another directory");
      fail_errno(ErrorCode::kSystem, text("gloo: lock of ", path), error);
    }
    struct stat held {};
    struct stat named {};
    if (fstat(lock_, &held) == 0 && stat(path.c_str(), &named) == 0 && held.st_ino == named.st_ino) return;
    close(lock_);
  }
}

void JobHost::announce() {
  // Only a rank 0 that died can have left these: the lock was free.
  std::error_code ignored;
  if (const auto stale = announced_job(directory_)) {
    std::filesystem::remove_all(job_folder(directory_, stale->id), ignored);
  }
  unlink(job_file(directory_).c_str());

  std::array<unsigned char, kIdDigits / 2> id{};
  fill_random(id);
  job_.id = to_hex(id);
  job_.tokens = Tokens::random();
  const std::string folder = job_folder(directory_, job_.id);
  if (mkdir(folder.c_str(), 0700) != 0) fail_errno(ErrorCode::kSystem, text("gloo: ", folder), errno);
  const std::string fresh = folder + ".new";
  const int file = open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) fail_errno(ErrorCode::kSystem, text("gloo: ", fresh), errno);
  write_all(file, fresh, kMagic + job_.id + to_hex(job_.tokens.connect) + to_hex(job_.tokens.accept));
  close(file);
  if (rename(fresh.c_str(), job_file(directory_).c_str()) != 0) {
    fail_errno(ErrorCode::kSystem, text("gloo: ", job_file(directory_)), errno);
  }
}

JobHost::~JobHost() { retire(); }

void JobHost::retire() noexcept {
  if (lock_ < 0) return;
  std::error_code ignored;
  unlink(job_file(directory_).c_str());
  std::filesystem::remove_all(job_folder(directory_, job_.id), ignored);
  unlink(lock_file(directory_).c_str());
  close(lock_);
  lock_ = -1;
}

std::optional<Job> announced_job(const std::string& directory) {
  const std::string path = job_file(directory);
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) {
    require(errno != EACCES, ErrorCode::kState, "gloo: ", path, " belongs to another user; choose another directory");
    return std::nullopt;
  }
  struct stat status {};
  std::string content(kFileBytes + 1, '\0');
  const bool stated = fstat(file, &status) == 0;
  const ssize_t got = read(file, content.data(), content.size());
  close(file);
  require(!stated || status.st_uid == geteuid(), ErrorCode::kState, "gloo: ", path, " belongs to user ", status.st_uid,
          ", this rank runs as user ", geteuid(), "; choose another directory");
  if (got != static_cast<ssize_t>(kFileBytes) || !content.starts_with(kMagic)) return std::nullopt;
  Job job;
  job.id = content.substr(16, kIdDigits);
  const bool valid = std::ranges::all_of(job.id, [](char c) { return digit_of(c) >= 0; }) &&
                     from_hex(content.substr(16 + kIdDigits, kIdDigits), job.tokens.connect) &&
                     from_hex(content.substr(16 + 2 * kIdDigits, kIdDigits), job.tokens.accept);
  if (!valid) return std::nullopt;
  return job;
}

}  // namespace echo_comm::core
