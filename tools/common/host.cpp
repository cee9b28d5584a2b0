#include "common/host.hpp"

#include <sched.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <system_error>

namespace echo_comm::tools {
namespace {

// Value of the first line "KEY : VALUE" of a file of /proc; "" if there is none.
std::string value_of(const char* path, const std::string& key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (!line.starts_with(key)) continue;
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos || line.find_first_not_of(" \t", key.size()) != colon) continue;
    const std::size_t value = line.find_first_not_of(" \t", colon + 1);
    return value == std::string::npos ? "" : line.substr(value);
  }
  return "";
}

int64_t meminfo(const std::string& key) {
  const std::string value = value_of("/proc/meminfo", key);  // "16384 kB"
  return value.empty() ? 0 : std::strtoll(value.c_str(), nullptr, 10) * 1024;
}

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));  // more cores than the set can name
}

// Smallest limit on the way from this process's control group to the root, version 2 and 1.
std::optional<int64_t> memory_limit() {
  constexpr int64_t kNoLimit = int64_t{1} << 60;  // version 1 says "none" by a huge number
  int64_t smallest = kNoLimit;
  const auto consider = [&](const std::string& path) {
    std::ifstream file(path);
    int64_t bytes = 0;
    if (file >> bytes) smallest = std::min(smallest, bytes);  // "max" is no number
  };
  consider("/sys/fs/cgroup/memory/memory.limit_in_bytes");
  std::ifstream groups("/proc/self/cgroup");
  std::string line;
  while (std::getline(groups, line)) {
    if (!line.starts_with("0::/")) continue;
    std::string path = line.substr(3);
    while (true) {
      consider("/sys/fs/cgroup" + path + "/memory.max");
      const std::size_t slash = path.rfind('/');
      if (slash == std::string::npos) break;
      path.resize(slash);
    }
  }
  if (smallest >= kNoLimit) return std::nullopt;
  return smallest;
}

std::string memfd_problem() {
  const int file = memfd_create("echo_info", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) return std::system_category().message(errno);
  close(file);
  return "";
}

// Words of the flags that Highway's targets are made of.
std::vector<std::string> processor_features() {
  constexpr std::array kWanted = {"ssse3",      "sse4_2",      "avx2",  "fma", "avx512f", "avx512bw",
                                  "avx512vbmi", "avx512_bf16", "asimd", "sve", "sve2"};
  std::string flags = value_of("/proc/cpuinfo", "flags");
  if (flags.empty()) flags = value_of("/proc/cpuinfo", "Features");  // arm
  std::istringstream words(flags);
  std::vector<std::string> found;
  for (std::string word; words >> word;) {
    if (std::ranges::find(kWanted, word) != kWanted.end()) found.push_back(word);
  }
  return found;
}

std::vector<std::string> numa_nodes() {
  std::vector<std::string> nodes;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/devices/system/node", ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("node", 0) != 0) continue;
    std::ifstream file(entry.path() / "cpulist");
    std::string processors;
    std::getline(file, processors);
    nodes.push_back(name + ": " + (processors.empty() ? "no processors" : processors));
  }
  std::ranges::sort(nodes);
  return nodes;
}

}  // namespace

HostFacts host_facts() {
  HostFacts host;
  utsname name{};
  if (uname(&name) == 0) host.system = std::string(name.sysname) + " " + name.release + " " + name.machine;
  host.cpu = value_of("/proc/cpuinfo", "model name");
  if (host.cpu.empty()) host.cpu = "unknown";
  host.cores = usable_cores();
  host.memory = meminfo("MemTotal");
  host.memory_available = meminfo("MemAvailable");
  host.memory_limit = memory_limit();
  host.memfd = memfd_problem();
  host.features = processor_features();
  host.nodes = numa_nodes();
  return host;
}

Json to_json(const HostFacts& host) {
  return {{"system", host.system},
          {"cpu", host.cpu},
          {"cores", host.cores},
          {"memory_bytes", host.memory},
          {"memory_available_bytes", host.memory_available},
          {"memory_limit_bytes", host.memory_limit ? Json(*host.memory_limit) : Json()},
          {"memfd", host.memfd.empty()},
          {"cpu_features", host.features},
          {"numa_nodes", host.nodes}};
}

int64_t memory_for_a_job(const HostFacts& host) {
  const int64_t available =
      host.memory_available > 0 ? host.memory_available : std::numeric_limits<int64_t>::max();  // unknown
  return std::min(available, host.memory_limit.value_or(available));
}

std::string in_words(int64_t bytes) {
  constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return std::to_string(bytes) + " B";
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f %s", value, kUnits[unit]);
  return text.data();
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

}  // namespace echo_comm::tools
