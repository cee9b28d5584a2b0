// gloo: how ranks find each other through a directory, and what they get when a peer dies, stops or is a stranger.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "testing/transports.hpp"
#include "transport/gloo/gloo.hpp"
#include "transport/gloo/job.hpp"

namespace echo_comm::core {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

Deadline soon() { return Deadline::in(30s); }

int threads_now() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) ++count;
  return count;
}

int files_in(const std::string& directory) {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(directory)) ++count;
  return count;
}

template <typename Act>
Error error_of(Act act) {
  try {
    act();
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::kInternal, "nothing was thrown");
}

Error receive_error(Transport& transport, int from, Deadline deadline = soon()) {
  return error_of([&] { static_cast<void>(transport.receive(from, Route::kPair, deadline)); });
}

// One message to everyone and one from everyone: the communicator works.
void expect_works(Transport& transport) {
  static_cast<void>(transport.acquire(kEveryone, soon()));
  transport.commit(kEveryone, 8);
  for (int from = 0; from < transport.size(); ++from) {
    if (from == transport.rank()) continue;
    ASSERT_EQ(transport.receive(from, Route::kEveryone, soon()).size(), 8U);
    transport.release(from, Route::kEveryone);
  }
}

// TCP ports on which anybody on this host listens at 127.0.0.1.
std::set<int> listening_ports() {
  std::set<int> ports;
  std::ifstream table("/proc/net/tcp");
  std::string line;
  std::getline(table, line);
  while (std::getline(table, line)) {
    unsigned number = 0, address = 0, port = 0, remote = 0, remote_port = 0, state = 0;
    if (std::sscanf(line.c_str(), "%u: %8x:%4x %8x:%4x %2x", &number, &address, &port, &remote, &remote_port, &state) ==
            6 &&
        state == 10 && address == htonl(INADDR_LOOPBACK)) {
      ports.insert(static_cast<int>(port));
    }
  }
  return ports;
}

// Connects to what listens at `port` and stays connected; -1 when nobody does.
int connect_to_port(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return fd;
  close(fd);
  return -1;
}

class Gloo : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = testing::cannot_test(testing::Kind::kGloo); !why.empty()) GTEST_SKIP() << why;
  }
  [[nodiscard]] GlooOptions options(int rank, int size, std::chrono::milliseconds timeout = 20s) const {
    GlooOptions options;
    options.directory = directory_.path();
    options.interface = "lo";
    options.rank = rank;
    options.size = size;
    options.timeout = timeout;
    return options;
  }
  [[nodiscard]] static Error create_error(const GlooOptions& options) {
    return error_of([&] { create_gloo(options); });
  }

  const testing::TemporaryDirectory directory_;
};

TEST_F(Gloo, OneRankNeedsNobody) {
  const auto transport = create_gloo(options(0, 1));
  EXPECT_STREQ(transport->name(), "gloo");
  EXPECT_THAT(transport->address(), HasSubstr("lo 127.0.0.1"));
  expect_works(*transport);
}

TEST_F(Gloo, ManyRanksMeetAndLeaveNothingInTheDirectory) {
  testing::spawn_processes(16, [&](int rank, int size) { expect_works(*create_gloo(options(rank, size))); });
  EXPECT_EQ(files_in(directory_.path()), 0);
}

TEST_F(Gloo, DefaultSlotsKeepTheMemoryNear64MiB) {
  for (const int size : {1, 2, 8, 16, 22, 64}) {
    const int64_t bytes = kSlots * (3 * int64_t{size - 1} + 1) * gloo_slot_bytes(size);
    EXPECT_LE(bytes, 64 << 20) << size;
    EXPECT_EQ(gloo_slot_bytes(size) % 64, 0);
    EXPECT_TRUE(size > 8 || gloo_slot_bytes(size) == 256 << 10) << size;
  }
}

TEST_F(Gloo, RefusesWrongOptionsBeforeAnythingElse) {
  GlooOptions wrong = options(0, 2);
  wrong.directory = "relative/dir";
  EXPECT_THAT(create_error(wrong).text(), HasSubstr("must be absolute"));
  wrong.directory = directory_.path() + "/nowhere";
  EXPECT_EQ(create_error(wrong).code(), ErrorCode::kArgument);
  EXPECT_THAT(create_error(wrong).text(), AllOf(HasSubstr("/nowhere'"), HasSubstr("No such file")));
  wrong.directory = "/proc/self/status";
  EXPECT_THAT(create_error(wrong).text(), HasSubstr("is not a directory"));
  wrong = options(0, 2);
  wrong.interface = "eth77";
  EXPECT_THAT(create_error(wrong).text(), AllOf(HasSubstr("no interface 'eth77'"), HasSubstr("lo 127.0.0.1")));
  EXPECT_EQ(create_error(options(2, 2)).code(), ErrorCode::kArgument);
  EXPECT_EQ(create_error(options(0, kMaxRanks + 1)).code(), ErrorCode::kArgument);
}

// ---- agreement -------------------------------------------------------------------------------------------------

TEST_F(Gloo, RanksThatDisagreeAllGetBothSides) {  // R8
  testing::spawn_processes(4, [&](int rank, int size) {
    GlooOptions own = options(rank, size);
    own.settings = rank == 2 ? 77 : 5;
    const Error error = create_error(own);
    EXPECT_EQ(error.code(), ErrorCode::kMismatch);
    EXPECT_THAT(error.text(), HasSubstr("rank 2 of '" + directory_.path() + "' has settings 77, rank 0 has 5"));
  });
  testing::spawn_processes(3, [&](int rank, int size) {
    const Error error = create_error(options(rank, rank == 1 ? 4 : size));
    EXPECT_EQ(error.code(), ErrorCode::kMismatch);
    EXPECT_THAT(error.text(), HasSubstr("has size 4, rank 0 has 3"));
  });
  testing::spawn_processes(3, [&](int rank, int size) {
    GlooOptions own = options(rank, size);
    if (rank == 2) own.slot_bytes = 8192;
    EXPECT_THAT(create_error(own).text(), HasSubstr("has slot_bytes 8192, rank 0 has 262144"));
  });
  EXPECT_EQ(files_in(directory_.path()), 0);
}

TEST_F(Gloo, MissingRanksAreNamed) {  // I2
  testing::spawn_processes(2, [&](int rank, int) {
    const Error error = create_error(options(rank, 4, rank == 0 ? 600ms : 10s));
    EXPECT_EQ(error.code(), ErrorCode::kTimeout);
    EXPECT_THAT(error.text(), HasSubstr("ranks 2, 3 of 4 did not join '" + directory_.path() + "' within 600 ms"));
  });
  const Error error = create_error(options(1, 2, 200ms));
  EXPECT_EQ(error.code(), ErrorCode::kTimeout);
  EXPECT_THAT(error.text(), HasSubstr("no rank 0 at '" + directory_.path() + "' within 200 ms"));
}

TEST_F(Gloo, ASecondJobInTheDirectoryIsRefusedWhileTheFirstOneGathers) {
  testing::SharedCells cells;
  testing::ProcessGroup group(2, [&](int rank, int) {
    if (rank == 0) {
      EXPECT_EQ(create_error(options(0, 2, 1s)).code(), ErrorCode::kTimeout);
      return;
    }
    EXPECT_TRUE(testing::eventually([&] { return announced_job(directory_.path()).has_value(); }));
    const Error error = create_error(options(0, 2));
    EXPECT_EQ(error.code(), ErrorCode::kState);
    EXPECT_THAT(error.text(), HasSubstr("another live job is gathering in '" + directory_.path() + "'"));
  });
  for (const auto& result : group.wait()) EXPECT_TRUE(result.passed) << result.text;
}

// What a job that was killed leaves: its job file and folder. The others come first and find them.
TEST_F(Gloo, FilesOfAKilledJobDoNotDisturbTheNextOne) {
  testing::ProcessGroup killed(2, [&](int rank, int) {
    if (rank == 1) {
      EXPECT_TRUE(testing::eventually([&] { return announced_job(directory_.path()).has_value(); }));
      return;
    }
    static_cast<void>(create_error(options(0, 3)));
  });
  EXPECT_TRUE(testing::eventually([&] {
    const auto job = announced_job(directory_.path());
    return job && files_in(job_folder(directory_.path(), job->id)) >= 1;
  }));
  killed.kill(0, SIGKILL);
  killed.wait();
  const auto stale = announced_job(directory_.path());
  ASSERT_TRUE(stale.has_value());
  struct stat status {};
  ASSERT_EQ(stat(job_folder(directory_.path(), stale->id).c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0700U);
  ASSERT_EQ(stat((directory_.path() + "/echo_comm.job").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
  testing::spawn_processes(3, [&](int rank, int size) {
    if (rank == 0) {  // comes when the others have joined the stale job: three records lie there
      EXPECT_TRUE(testing::eventually([&] { return files_in(job_folder(directory_.path(), stale->id)) >= 3; }));
    }
    expect_works(*create_gloo(options(rank, size)));
  });
  EXPECT_EQ(files_in(directory_.path()), 0);
}

// ---- death -----------------------------------------------------------------------------------------------------

TEST_F(Gloo, SurvivorsHearWithinTwoSecondsOfAKilledRank) {  // D7
  for (int round = 0; round < 6; ++round) {
    testing::SharedCells cells;  // 0: killed at, 1 and 2: ranks 0 and 1 are about to wait
    testing::ProcessGroup group(3, [&](int rank, int size) {
      const auto transport = create_gloo(options(rank, size));
      transport->begin_call(17);
      expect_works(*transport);  // so that the others know the call
      if (rank == 2) {
        testing::eventually([&] { return cells[1] + cells[2] == 2; });
        cells[0] = testing::now_ns();
        kill(getpid(), SIGKILL);
      }
      const int awaited = rank == 0 || round % 3 != 0 ? 2 : 0;  // every third round rank 1 waits for a live rank
      cells[1 + rank] = 1;
      const Error error = receive_error(*transport, awaited);
      EXPECT_EQ(error.code(), ErrorCode::kPeer) << error.text();
      EXPECT_THAT(error.text(), HasSubstr("gloo: rank 2 died during call 17"));
      EXPECT_LT(static_cast<double>(testing::now_ns() - cells[0]) * 1e-9, 2.0);
    });
    const auto results = group.wait();
    EXPECT_EQ(results[2].signal, SIGKILL);
    for (int r = 0; r < 2; ++r) EXPECT_TRUE(results[static_cast<std::size_t>(r)].passed) << results[r].text;
  }
}

TEST_F(Gloo, ARankKilledWhileTheOthersGatherIsNamedByAll) {
  testing::SharedCells cells;
  testing::ProcessGroup group(3, [&](int rank, int) {
    if (rank == 2) {
      std::thread([&] {  // once it connects: this thread, the main one, Gloo's, and one for each of two peers
        testing::eventually([&] { return threads_now() >= 5; });
        cells[0] = testing::now_ns();
        kill(getpid(), SIGKILL);
      })
          .detach();
    }
    const Error error = create_error(options(rank, 4));  // rank 3 never comes
    EXPECT_EQ(error.code(), ErrorCode::kPeer);
    EXPECT_THAT(error.text(), HasSubstr("rank 2 died while '" + directory_.path() + "' was being created"));
    EXPECT_LT(static_cast<double>(testing::now_ns() - cells[0]) * 1e-9, 2.0);
  });
  const auto results = group.wait();
  EXPECT_EQ(results[2].signal, SIGKILL);
  for (const int r : {0, 1}) EXPECT_TRUE(results[static_cast<std::size_t>(r)].passed) << results[r].text;
}

// A stopped process is late, not dead; nobody waits much longer than its deadline, not even to say goodbye.
TEST_F(Gloo, AStoppedRankTimesOut) {
  testing::SharedCells cells;
  testing::ProcessGroup group(3, [&](int rank, int size) {
    auto transport = create_gloo(options(rank, size));
    if (rank == 1) {
      cells[1] = 1;
      raise(SIGSTOP);
      // The others are gone by now. It hears their text, or only that: a connection that breaks may lose the last words.
      EXPECT_THAT(receive_error(*transport, 0).code(), AnyOf(ErrorCode::kTimeout, ErrorCode::kPeer));
      return;
    }
    const auto begin = Deadline::Clock::now();
    const Error error = receive_error(*transport, 1, Deadline::in(500ms));
    EXPECT_EQ(error.code(), ErrorCode::kTimeout) << error.text();
    transport.reset();
    EXPECT_LT(Deadline::Clock::now() - begin, 2500ms);
    ++cells[0];
  });
  EXPECT_TRUE(testing::eventually([&] { return cells[0] == 2; }));
  group.kill(1, SIGCONT);
  for (const auto& result : group.wait()) EXPECT_TRUE(result.passed) << result.text;
}

// D: data loaders fork from processes that hold communicators.
TEST_F(Gloo, AForkedChildIsRefusedAndItsParentIsNotDisturbed) {
  testing::spawn_processes(2, [&](int rank, int size) {
    auto transport = create_gloo(options(rank, size));
    const pid_t child = fork();
    if (child == 0) {
      int wrong = 0;
      const auto refused = [&](auto act) {
        const Error error = error_of(act);
        if (error.code() != ErrorCode::kState || error.text().find("after fork") == std::string::npos) ++wrong;
      };
      const int peer = 1 - rank;
      refused([&] { static_cast<void>(transport->acquire(peer, soon())); });
      refused([&] { static_cast<void>(transport->receive(peer, Route::kPair, soon())); });
      refused([&] { transport->commit(peer, 8); });
      refused([&] { transport->release(peer, Route::kPair); });
      refused([&] { transport->check(); });
      transport->begin_call(1000);
      transport->fail(Error(ErrorCode::kInternal, "from a child"));
      transport.reset();
      _exit(wrong);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    for (int i = 0; i < 100; ++i) expect_works(*transport);
  });
}

TEST_F(Gloo, TwoHundredCommunicatorsLeaveNoDescriptorAndNoThread) {
  const auto round = [] {
    auto transports = create_gloo_in_process(2, 4096);
    testing::spawn_threads(2, [&](int rank, int) {
      const auto own = std::move(transports[static_cast<std::size_t>(rank)]);
      expect_works(*own);
    });
  };
  round();
  const int descriptors = testing::open_descriptors();
  const int threads = threads_now();
  for (int i = 0; i < 200; ++i) round();
  EXPECT_EQ(testing::open_descriptors(), descriptors);
  EXPECT_EQ(threads_now(), threads);
}

// Connected TCP sockets of this process.
std::vector<int> connections() {
  std::vector<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename().string());
    sockaddr_storage peer{};
    socklen_t length = sizeof peer;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) == 0 && peer.ss_family == AF_INET) {
      found.push_back(fd);
    }
  }
  return found;
}

// A socket whose other end is gone takes nothing more, and the kernel raises SIGPIPE in whoever writes. Which thread
// notices first is a matter of luck, so this end is shut here: the next write is sure to get it.
TEST_F(Gloo, AProgramWithTheDefaultSigpipeOutlivesAWriteToNobody) {
  testing::ProcessGroup group(2, [&](int rank, int size) {
    signal(SIGPIPE, SIG_DFL);
    const auto transport = create_gloo(options(rank, size));
    expect_works(*transport);
    for (const int fd : connections()) shutdown(fd, SHUT_WR);
    const Error error = error_of([&] {
      for (;;) {  // short messages and long ones
        static_cast<void>(transport->acquire(1 - rank, soon()));
        transport->commit(1 - rank, 8);
        static_cast<void>(transport->acquire(1 - rank, soon()));
        transport->commit(1 - rank, transport->max_message());
      }
    });
    EXPECT_EQ(error.code(), ErrorCode::kPeer) << error.text();
  });
  for (const auto& result : group.wait()) EXPECT_TRUE(result.passed) << result.text << ", signal " << result.signal;
}

// ---- strangers -------------------------------------------------------------------------------------------------

// Somebody connects to everything that the waiting ranks listen on, before the last rank comes, and sends garbage, a
// hello with a wrong token, or nothing. The job starts all the same.
class Strangers : public Gloo, public ::testing::WithParamInterface<int> {};
constexpr const char* kWhatTheyDo[] = {"SendNothing", "SendGarbage", "SendAWrongToken"};
INSTANTIATE_TEST_SUITE_P(All, Strangers, ::testing::Values(0, 1, 2),
                         [](const auto& param) { return std::string(kWhatTheyDo[param.param]); });

TEST_P(Strangers, DoNotStopTheJob) {
  testing::SharedCells cells;
  const std::set<int> before = listening_ports();
  testing::ProcessGroup group(3, [&](int rank, int) {
    if (rank < 2) {
      if (rank == 1) {
        EXPECT_TRUE(testing::eventually([&] { return cells[0] == 1; }));
      }
      return expect_works(*create_gloo(options(rank, 2)));
    }
    std::vector<int> sockets;
    EXPECT_TRUE(testing::eventually([&] {
      for (const int port : listening_ports()) {
        if (before.contains(port)) continue;
        const int fd = connect_to_port(port);
        if (fd >= 0) sockets.push_back(fd);
      }
      return !sockets.empty();
    }));
    for (const int fd : sockets) {
      testing::Random random(7);
      std::string bytes;
      if (GetParam() == 1) {
        for (int i = 0; i < 3000; ++i) bytes += static_cast<char>(random.next());
      } else if (GetParam() == 2) {  // as Gloo frames it: bytes, opcode, slot, offset, length, offset there
        const uint64_t preamble[6] = {48 + 24, 0, 1, 0, 24, 0};
        bytes.assign(reinterpret_cast<const char*>(preamble), sizeof preamble);
        const uint32_t hello[2] = {0x4847'4345, 1};
        bytes.append(reinterpret_cast<const char*>(hello), sizeof hello);
        bytes.append(16, 'x');
      }
      static_cast<void>(!send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL));
    }
    cells[0] = 1;
    for (const int fd : sockets) {  // until it is refused
      char byte = 0;
      while (recv(fd, &byte, 1, 0) > 0) {
      }
      close(fd);
    }
  });
  for (const auto& result : group.wait()) EXPECT_TRUE(result.passed) << result.text;
}

}  // namespace
}  // namespace echo_comm::core
