// One job in a directory that all its ranks see. It works on network file systems: nothing but files that appear whole
// (rename), folders, and a lock that the kernel drops when its holder dies.
//
//   DIR/echo_comm.lock        held by rank 0 while the ranks meet; a second job that starts meanwhile is refused
//   DIR/echo_comm.job         id and tokens of the job that is gathering, mode 0600
//   DIR/echo_comm-ID/         mode 0700, where its ranks exchange addresses (Gloo's FileStore)
//
// Rank 0 makes all three and removes them when all ranks are connected. What a killed rank 0 left is removed by the
// next one, as nobody holds the lock. The others read the job file, and start again when it changes.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>

namespace echo_comm::core {

// Secrets of one job. A connecting rank shows the first, an accepting one answers with the second, so that a stranger
// who is connected to learns nothing.
struct Tokens {
  std::array<unsigned char, 16> connect{};
  std::array<unsigned char, 16> accept{};

  static Tokens random();
};

struct Job {
  std::string id;  // 32 hexadecimal digits
  Tokens tokens;
};

// Throws kArgument unless it is absolute, exists and can be written.
void check_directory(const std::string& directory);

// Rank 0's job, from its announcement to its end.
class JobHost {
 public:
  // Throws kState when another live job is gathering there, kSystem when files cannot be made.
  explicit JobHost(const std::string& directory);
  ~JobHost();
  JobHost(const JobHost&) = delete;
  JobHost& operator=(const JobHost&) = delete;

  [[nodiscard]] const Job& job() const { return job_; }
  // Removes the files and frees the directory. Before the ranks hear that they are complete: what they see there
  // afterwards is another job.
  void retire() noexcept;

 private:
  void lock();
  void announce();

  std::string directory_;
  Job job_;
  int lock_ = -1;
};

// The job that is announced there now, if any. Throws kState when its file is another user's.
std::optional<Job> announced_job(const std::string& directory);

std::string job_folder(const std::string& directory, const std::string& id);

}  // namespace echo_comm::core
