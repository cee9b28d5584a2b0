// Shared memory under odd conditions: small /dev/shm, limits, separate PID namespaces; and nothing is ever left over.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

#include "testing/processes.hpp"
#include "transport/inproc/inproc.hpp"
#include "transport/mailbox/region.hpp"
#include "transport/shm/shm.hpp"

namespace echo_comm::core {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

Deadline soon() { return Deadline::in(30s); }

Error create_error(const ShmOptions& options) {
  try {
    create_shm(options);
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::kInternal, "nothing was thrown");
}

// The largest messages on every route, several times round all slots.
void fill_all(Transport& transport) {
  for (int round = 0; round < 3; ++round) {
    for (int to = kEveryone; to < transport.size(); ++to) {
      if (to == transport.rank()) continue;
      const auto room = transport.acquire(to, soon());
      std::memset(room.data(), round + 1, room.size());
      transport.commit(to, room.size());
    }
    for (int from = 0; from < transport.size(); ++from) {
      if (from == transport.rank()) continue;
      for (const Route route : {Route::kPair, Route::kEveryone}) {
        const auto message = transport.receive(from, route, soon());
        ASSERT_EQ(message.size(), transport.max_message());
        ASSERT_EQ(message.back(), static_cast<std::byte>(round + 1));
        transport.release(from, route);
      }
    }
  }
}

class Memory : public ::testing::Test {
 protected:
  void SetUp() override {
    if (testing::kThreadSanitizer) GTEST_SKIP() << "the thread sanitizer does not fork";
  }
  ShmOptions options(int rank, int size) const {
    ShmOptions made;
    made.name = name_;
    made.rank = rank;
    made.size = size;
    return made;
  }
  const std::string name_ = testing::unique_name();
};

TEST_F(Memory, OfTwoHundredCommunicatorsLeavesNoDescriptorAndNoMapping) {  // E1
  testing::spawn_processes(2, [&](int rank, int size) {
    fill_all(*create_shm(options(rank, size)));
    const int descriptors = testing::open_descriptors();
    const int mappings = testing::mappings_with("");
    for (int i = 0; i < 200; ++i) {
      ShmOptions next = options(rank, size);  // the same name each time: rank 1 may come before rank 0 has left. D7
      next.slot_bytes = 4096;
      fill_all(*create_shm(next));
    }
    EXPECT_EQ(testing::open_descriptors(), descriptors);
    EXPECT_LE(testing::mappings_with(""), mappings + 20) << "mappings of the heap come and go";
    EXPECT_EQ(testing::mappings_with("echo_comm:"), 0);
  });
}

TEST_F(Memory, OfFailedRendezvousLeavesNoDescriptorAndNoMapping) {
  testing::spawn_processes(2, [&](int rank, int size) {
    const int descriptors = testing::open_descriptors();
    for (int i = 0; i < 20; ++i) {
      ShmOptions next = options(rank, size);
      next.name += "." + std::to_string(i);
      next.settings = static_cast<uint64_t>(rank);
      EXPECT_EQ(create_error(next).code(), ErrorCode::kMismatch);
    }
    EXPECT_EQ(testing::open_descriptors(), descriptors);
    EXPECT_EQ(testing::mappings_with("echo_comm:"), 0);
  });
}

// The file system of 64 MiB, or here of 1 MiB, that containers have. E3
TEST_F(Memory, DoesNotComeFromDevShm) {
  const auto shrink_dev_shm = [] {
    return unshare(CLONE_NEWNS) == 0 && mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=1m") == 0;
  };
  if (!testing::child_can(shrink_dev_shm)) GTEST_SKIP() << "needs root, to mount a small /dev/shm of its own";
  testing::spawn_processes(8, [&](int rank, int size) {
    ASSERT_TRUE(shrink_dev_shm()) << std::strerror(errno);
    fill_all(*create_shm(options(rank, size)));
  });
}

// Every rank has process id 1 in a PID namespace of its own, and no right to trace others; death still shows. E4, E5
TEST_F(Memory, AndSignsOfLifeWorkAcrossPidNamespaces) {
  const auto enter_namespaces = [] { return unshare(CLONE_NEWPID | CLONE_NEWIPC) == 0; };
  if (!testing::child_can([&] { return enter_namespaces() && setuid(65534) == 0; })) {
    GTEST_SKIP() << "needs root, to make PID namespaces";
  }
  testing::SharedCells cells;
  testing::ProcessGroup group(3, [&](int rank, int size) {
    ASSERT_TRUE(enter_namespaces()) << std::strerror(errno);
    const pid_t child = fork();
    if (child == 0) {
      if (getpid() != 1 || setuid(65534) != 0) _exit(10);
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      try {
        const auto transport = create_shm(options(rank, size));
        fill_all(*transport);
        cells[rank] = 1;
        testing::eventually([&] { return cells[0] + cells[1] + cells[2] == 3; });
        if (rank == 2) _exit(0);  // without leaving: as good as killed (signals do not reach a process 1)
        try {
          static_cast<void>(transport->receive(2, Route::kPair, soon()));
        } catch (const Error& error) {
          _exit(error.code() == ErrorCode::kPeer && error.text().find("rank 2 died") != std::string::npos ? 0 : 11);
        }
      } catch (const Error& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      }
      _exit(12);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "exit code " << WEXITSTATUS(status);
  });
  for (const auto& result : group.wait()) EXPECT_TRUE(result.passed) << result.text;
}

void limit(int resource, rlim_t bytes) {
  const rlimit value{bytes, bytes};
  ASSERT_EQ(setrlimit(static_cast<__rlimit_resource>(resource), &value), 0);
}

// Not the signal that a write past this limit means. E3
TEST_F(Memory, PastTheFileSizeLimitIsAnErrorOnAllRanks) {
  testing::spawn_processes(2, [&](int rank, int size) {
    limit(RLIMIT_FSIZE, 1 << 20);
    const Error error = create_error(options(rank, size));
    EXPECT_EQ(error.code(), ErrorCode::kSystem);
    EXPECT_THAT(error.text(), AllOf(HasSubstr(std::to_string(Region(2, 0).bytes()) + " bytes"),
                                    HasSubstr("RLIMIT_FSIZE"), HasSubstr("ECHO_SHM_SLOT_BYTES")));
  });
}

// One rank cannot map the memory: all ranks are told which one.
TEST_F(Memory, ThatOneRankCannotMapIsAnErrorOnAllRanks) {
  if (testing::kAddressSanitizer) GTEST_SKIP() << "the address sanitizer needs the address space";
  testing::spawn_processes(3, [&](int rank, int size) {
    ShmOptions large = options(rank, size);
    large.slot_bytes = 8 << 20;
    if (rank == 1) limit(RLIMIT_AS, 100 << 20);
    const Error error = create_error(large);
    EXPECT_EQ(error.code(), ErrorCode::kSystem);
    EXPECT_THAT(error.text(), AllOf(HasSubstr("cannot be mapped"), HasSubstr("ECHO_SHM_SLOT_BYTES below 8388608")));
    if (rank != 1) {
      EXPECT_THAT(error.text(), HasSubstr("rank 1: "));
    }
  });
}

TEST_F(Memory, MoreThanTheHostHasIsRefusedBeforeAnyIsTaken) {
  testing::spawn_processes(2, [&](int rank, int) {
    ShmOptions huge = options(rank, kMaxRanks);
    huge.slot_bytes = 64 << 20;  // 2 TiB in all
    huge.timeout = 5s;
    const Error error = create_error(huge);
    if (error.code() == ErrorCode::kTimeout) return;  // a host with that much memory
    EXPECT_EQ(error.code(), ErrorCode::kSystem);
    EXPECT_THAT(error.text(), HasSubstr("2199"));
  });
}

TEST(InprocMemory, IsFreedByTheLastRankInAnyOrder) {
  const int mappings = testing::mappings_with("");
  for (int i = 0; i < 50; ++i) {
    auto transports = create_inproc(4);
    transports[static_cast<std::size_t>(i % 4)].reset();
    transports.clear();
  }
  EXPECT_LE(testing::mappings_with(""), mappings + 20);
}

TEST(InprocMemory, ThatCannotBeHadIsAnError) {
  if (testing::kThreadSanitizer || testing::kAddressSanitizer) GTEST_SKIP() << "sanitizers need the address space";
  testing::spawn_processes(1, [](int, int) {
    limit(RLIMIT_AS, 200 << 20);
    try {
      create_inproc(8, 8 << 20);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kMemory) << error.text();
    }
  });
}

}  // namespace
}  // namespace echo_comm::core
