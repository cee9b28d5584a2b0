#include "echo_info/doctor.hpp"

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>

#include "common/build.hpp"
#include "common/element.hpp"
#include "common/host.hpp"
#include "common/inputs.hpp"
#include "common/network.hpp"
#include "common/processes.hpp"
#include "echo_comm/echo.hpp"
#include "echo_info/network_checks.hpp"

namespace echo_comm::tools {
namespace {

constexpr int kRanks = 2;
constexpr auto kTimeout = std::chrono::seconds(10);

const char* name_of(echo_dtype_t dtype) {
  return dtype == ECHO_FLOAT32 ? "float" : dtype == ECHO_FLOAT16 ? "half" : "bfloat16";
}

// One exact or coded all-reduce of values whose result is known to the bit. Throws when it is another.
void check_sum(Communicator& comm, std::size_t count, echo_dtype_t dtype, int bits) {
  const Grid grid{.bits = bits == ECHO_BITS_EXACT ? 4 : bits, .ranks = comm.size()};
  std::vector<std::byte> in(count * element_size(dtype));
  std::vector<std::byte> out(in.size());
  fill_grid(in.data(), count, dtype, comm.rank(), grid);
  echo_call_t call = ECHO_CALL_INITIALIZER;
  call.bits = bits;
  check(echo_all_reduce(in.data(), out.data(), count, dtype, comm.get(), nullptr, &call));
  const std::uint64_t wrong = count_wrong(out.data(), count, dtype, grid);
  if (wrong == 0) return;
  const std::string how = bits == ECHO_BITS_EXACT ? "exactly" : "with " + std::to_string(bits) + " bits";
  throw std::runtime_error("the sum of " + std::to_string(count) + " values of type " + name_of(dtype) + ", sent " +
                           how + ", has " + std::to_string(wrong) +
                           " wrong elements; this is a bug in Echo or broken hardware, please report it");
}

void check_sums(Communicator comm) {
  for (const echo_dtype_t dtype : {ECHO_FLOAT32, ECHO_FLOAT16, ECHO_BFLOAT16}) {
    for (const std::size_t count : {1U, 63U, 64U, 65U, 1000U, 4096U, 300000U}) {
      for (const int bits : {ECHO_BITS_EXACT, 3, 4, 5, 6, 8}) check_sum(comm, count, dtype, bits);
    }
  }
}

// Runs the body in `count` processes of its own; "" or what the first that failed said.
std::string in_processes(int count, const Processes::Body& body) {
  std::vector<Outcome> outcomes = Processes(count, body).wait(kTimeout + std::chrono::seconds(5));
  std::ranges::stable_sort(outcomes, [](const Outcome& a, const Outcome& b) { return a.signal > b.signal; });
  for (const Outcome& outcome : outcomes) {
    if (!outcome.passed) return (outcome.signal != 0 ? "a rank " : "") + outcome.reason();
  }
  return "";
}

std::string check_version() {
  const BuildFacts build = build_facts();
  if (build.version == build.library) return "";
  return "this tool is of version " + build.version + ", the library it loaded (" + build.library_path + ") is " +
         build.library + "; install one version, or look at LD_LIBRARY_PATH";
}

std::string check_memfd() {
  const std::string problem = host_facts().memfd;
  return problem.empty() ? "" : "memfd_create: " + problem + "; shm needs Linux 3.17 and a sandbox that allows it";
}

// A communicator of one rank reads every variable, and says which is wrong.
std::string check_environment() {
  return in_processes(1, [](int) { static_cast<void>(Communicator::create_all(1)); });
}

std::string check_inproc() {
  return in_processes(1, [](int) {
    std::vector<Communicator> comms = Communicator::create_all(kRanks, {.timeout = kTimeout});
    std::vector<std::string> problems(comms.size());
    std::vector<std::thread> threads;
    threads.reserve(comms.size());
    for (std::size_t rank = 0; rank < comms.size(); ++rank) {
      threads.emplace_back([&, rank, comm = std::move(comms[rank])]() mutable {
        try {
          check_sums(std::move(comm));
        } catch (const std::exception& error) {
          problems[rank] = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::string& problem : problems) {
      if (!problem.empty()) throw std::runtime_error(problem);
    }
  });
}

std::string check_shm() {
  const std::string name = random_name("echo-doctor");
  return in_processes(kRanks, [&](int rank) {
    const std::string url = "shm://" + name + "?rank=" + std::to_string(rank) + "&size=" + std::to_string(kRanks);
    check_sums(Communicator::create(url, {.timeout = kTimeout}));
  });
}

std::string check_gloo(const TemporaryFolder& folder) {
  return in_processes(kRanks, [&](int rank) {
    const std::string url = "gloo+file://" + folder.path() + "?rank=" + std::to_string(rank) +
                            "&size=" + std::to_string(kRanks) + "&iface=lo";
    check_sums(Communicator::create(url, {.timeout = kTimeout}));
    if (rank == 0) folder.write(loaded_files("gloo"));
  });
}

// Without Gloo everything but transports over a network works: nothing is wrong then.
Check gloo_check() {
  Check check{"gloo, 2 processes", ""};
  const std::string missing = in_processes(1, [](int) {  // loads the module, which may start threads
    if (!gloo_built_in()) throw std::runtime_error("missing");
  });
  if (!missing.empty()) {
    check.detail = "not built in; for ranks on several hosts install libgloo-dev and build Echo again";
    return check;
  }
  const TemporaryFolder folder;
  check.problem = check_gloo(folder);
  check.detail = folder.read() + gloo_headers();
  return check;
}

Check codec_check() {
  Check check{"processor", ""};
  const std::vector<std::string> features = host_facts().features;
  for (const std::string& feature : features) check.detail += (check.detail.empty() ? "" : " ") + feature;
  check.detail = (check.detail.empty() ? "no vector features known" : check.detail) + "; codec " + echo_active_codec();
  const bool scalar = std::string(echo_active_codec()) == "reference";
  if (scalar && !features.empty()) check.detail += ", the slow one: install libhwy-dev and build Echo again";
  return check;
}

Check nodes_check() {
  Check check{"NUMA nodes", ""};
  const std::vector<std::string> nodes = host_facts().nodes;
  for (const std::string& node : nodes) check.detail += (check.detail.empty() ? "" : "; ") + node;
  if (nodes.empty()) check.detail = "not told by the kernel";
  if (nodes.size() > 1) check.detail += "; bind each rank to one node, e.g. by numactl --cpunodebind=N --membind=N";
  return check;
}

Check interfaces_check() {
  Check check{"interfaces", ""};
  bool loopback = false;
  for (const Interface& one : interfaces()) {
    if (one.name == "lo") loopback = one.up;
    if (!one.up || !one.address) continue;
    check.detail +=
        (check.detail.empty() ? "" : "; ") + one.name + " " + one.address->text() + " mtu " + std::to_string(one.mtu);
  }
  if (!loopback) check.problem = "the loopback interface lo is down; turn it on: ip link set lo up";
  return check;
}

// On every interface: a connection to itself.
Check ports_check() {
  Check check{"ports", ""};
  int worked = 0;
  for (const Interface& one : interfaces()) {
    if (!one.up || !one.address) continue;
    const std::string problem = listen_problem(*one.address);
    if (!problem.empty()) {
      check.problem += (check.problem.empty() ? "" : "; ") + one.name + " (" + one.address->text() + "): " + problem;
    }
    ++worked;
  }
  if (!check.problem.empty()) check.problem += "; a firewall or sandbox forbids it, allow TCP between the ranks";
  check.detail = "can be listened on and reached on " + std::to_string(worked) + " interfaces";
  return check;
}

}  // namespace

std::vector<Check> run_doctor() {
  std::vector<Check> checks = {
      {"version", check_version()}, {"memfd", check_memfd()}, {"environment", check_environment()}};
  checks.push_back(codec_check());
  checks.push_back(nodes_check());
  checks.push_back({"inproc, 2 threads", check_inproc()});
  checks.push_back({"shm, 2 processes", check_shm()});
  checks.push_back(interfaces_check());
  checks.push_back(ports_check());
  checks.push_back(gloo_check());
  return checks;
}

}  // namespace echo_comm::tools
