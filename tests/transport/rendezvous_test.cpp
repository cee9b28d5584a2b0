// How ranks of shm find each other, and what they are told when they do not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "testing/processes.hpp"
#include "transport/shm/rendezvous.hpp"
#include "transport/shm/shm.hpp"

namespace echo_comm::core {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

Deadline soon() { return Deadline::in(30s); }

ShmOptions options_of(const std::string& name, int rank, int size, std::chrono::milliseconds timeout = 20s) {
  ShmOptions options;
  options.name = name;
  options.rank = rank;
  options.size = size;
  options.timeout = timeout;
  return options;
}

Error create_error(const ShmOptions& options) {
  try {
    create_shm(options);
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::kInternal, "nothing was thrown");
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

bool can_become_another_user() {
  return geteuid() == 0 && testing::child_can([] { return setuid(65534) == 0; });
}

class Rendezvous : public ::testing::Test {
 protected:
  void SetUp() override {
    if (testing::kThreadSanitizer) GTEST_SKIP() << "the thread sanitizer does not fork";
  }
  const std::string name_ = testing::unique_name();
};

TEST_F(Rendezvous, OfOneRankNeedsNobody) {
  const auto transport = create_shm(options_of(name_, 0, 1));
  EXPECT_EQ(transport->size(), 1);
  EXPECT_STREQ(transport->name(), "shm");
  expect_works(*transport);
}

TEST_F(Rendezvous, OfManyRanks) {
  testing::spawn_processes(16, [&](int rank, int size) { expect_works(*create_shm(options_of(name_, rank, size))); });
}

TEST_F(Rendezvous, RefusesWrongOptionsBeforeAnythingElse) {
  EXPECT_EQ(create_error(options_of("", 0, 1)).code(), ErrorCode::kArgument);
  EXPECT_EQ(create_error(options_of("a/b", 0, 1)).code(), ErrorCode::kArgument);
  EXPECT_EQ(create_error(options_of(std::string(65, 'a'), 0, 1)).code(), ErrorCode::kArgument);
  EXPECT_EQ(create_error(options_of(name_, 2, 2)).code(), ErrorCode::kArgument);
  EXPECT_EQ(create_error(options_of(name_, -1, 2)).code(), ErrorCode::kArgument);
  EXPECT_EQ(create_error(options_of(name_, 0, kMaxRanks + 1)).code(), ErrorCode::kArgument);
  EXPECT_EQ(create_error(options_of(name_, 0, 1, 0s)).code(), ErrorCode::kArgument);
}

// ---- disagreement ----------------------------------------------------------------------------------------------

TEST_F(Rendezvous, RanksThatDisagreeOnSettingsAllGetBothSides) {  // R8
  testing::spawn_processes(4, [&](int rank, int size) {
    ShmOptions options = options_of(name_, rank, size);
    options.settings = rank == 2 ? 77 : 5;
    const Error error = create_error(options);
    EXPECT_EQ(error.code(), ErrorCode::kMismatch);
    EXPECT_THAT(error.text(), AllOf(HasSubstr("rank 2 of"), HasSubstr("has settings 77, rank 0 has 5")));
  });
}

TEST_F(Rendezvous, RanksThatDisagreeOnSizeOrSlotsAllGetBothSides) {
  testing::spawn_processes(3, [&](int rank, int size) {
    const Error error = create_error(options_of(name_, rank, rank == 1 ? 4 : size));
    EXPECT_EQ(error.code(), ErrorCode::kMismatch);
    EXPECT_THAT(error.text(), HasSubstr("rank 1 of '" + name_ + "' has size 4, rank 0 has 3"));
  });
  testing::spawn_processes(3, [&](int rank, int size) {
    ShmOptions options = options_of(name_, rank, size);
    if (rank == 2) options.slot_bytes = 8192;
    const Error error = create_error(options);
    EXPECT_EQ(error.code(), ErrorCode::kMismatch);
    EXPECT_THAT(error.text(), HasSubstr("has slot_bytes 8192, rank 0 has"));
  });
}

// Threads of one process cannot see each other die (memory.hpp).
TEST_F(Rendezvous, TwoRanksInOneProcessAreRefused) {
  testing::spawn_threads(2, [&](int rank, int size) {
    const Error error = create_error(options_of(name_, rank, size));
    EXPECT_EQ(error.code(), ErrorCode::kState);
    EXPECT_THAT(error.text(), AllOf(HasSubstr("in the same process"), HasSubstr("echo_comm_create_all")));
  });
}

// ---- names in use ----------------------------------------------------------------------------------------------

TEST_F(Rendezvous, ANameInUseByALiveJobIsRefusedAndFreeAfterwards) {
  testing::SharedCells cells;
  testing::ProcessGroup group(4, [&](int rank, int) {
    if (rank < 2) {  // the live job
      const auto transport = create_shm(options_of(name_, rank, 2));
      ++cells[0];
      EXPECT_TRUE(testing::eventually([&] { return cells[1] == 2; }));
      return expect_works(*transport);
    }
    EXPECT_TRUE(testing::eventually([&] { return cells[0] == 2; }));
    const Error error = create_error(options_of(name_, rank - 2, 2));
    EXPECT_EQ(error.code(), ErrorCode::kState);
    EXPECT_THAT(error.text(), HasSubstr("the name '" + name_ + "' is in use by a live job"));
    ++cells[1];
  });
  for (const auto& result : group.wait()) EXPECT_TRUE(result.passed) << result.text;
  testing::spawn_processes(2, [&](int rank, int size) { expect_works(*create_shm(options_of(name_, rank, size))); });
}

TEST_F(Rendezvous, ARankTakenTwiceIsRefusedAndTheFirstOneStays) {
  testing::SharedCells cells;
  testing::spawn_processes(4, [&](int rank, int) {
    if (rank == 3) {  // claims to be rank 1 while the job waits for its rank 2
      EXPECT_TRUE(testing::eventually([&] { return cells[0] == 1; }));
      Error error(ErrorCode::kInternal, "");
      EXPECT_TRUE(testing::eventually([&] {
        error = create_error(options_of(name_, 1, 3));
        return error.code() == ErrorCode::kState;
      })) << error.text();
      EXPECT_THAT(error.text(), HasSubstr("rank 1 of '" + name_ + "' is already taken by a live process"));
      cells[1] = 1;
      return;
    }
    if (rank == 2) {
      EXPECT_TRUE(testing::eventually([&] { return cells[1] == 1; }));
    }
    if (rank == 1) {
      // Nobody else can tell that rank 1 has been accepted; it says Hello by itself and then waits as a rank does.
      Fd socket = open_socket(SOCK_SEQPACKET);
      EXPECT_TRUE(testing::eventually([&] { return connect_to(socket, join_address(name_)) == 0; }));
      Hello hello;
      hello.rank = 1;
      hello.size = 3;
      hello.slot_bytes = Region(3, 0).slot_bytes();
      hello.process = ProcessIdentity::own();
      EXPECT_TRUE(send_message(socket, &hello, sizeof hello));
      Note note;
      Fd file;
      EXPECT_TRUE(testing::eventually([&] { return read_message(socket, &note, sizeof note, &file) > 0; }));
      Region region(3, 0);
      SharedMemory memory(std::move(file), region, 1, name_);
      region.attach(memory.bytes());
      region.announce(1);
      cells[0] = 1;
      note = Note::of(NoteKind::kReady);
      EXPECT_TRUE(send_message(socket, &note, sizeof note));
      EXPECT_TRUE(testing::eventually([&] { return read_message(socket, &note, sizeof note) > 0; }));
      EXPECT_EQ(note.kind, NoteKind::kGo);
      cells[2] = 1;
      return;
    }
    const auto transport = create_shm(options_of(name_, rank, 3));
    EXPECT_TRUE(testing::eventually([&] { return cells[2] == 1; }));
  });
}

// ---- missing and dying ranks -----------------------------------------------------------------------------------

TEST_F(Rendezvous, MissingRanksAreNamed) {  // I2
  testing::spawn_processes(2, [&](int rank, int) {
    const Error error = create_error(options_of(name_, rank, 4, rank == 0 ? 500ms : 10s));
    EXPECT_EQ(error.code(), ErrorCode::kTimeout);
    EXPECT_THAT(error.text(), HasSubstr("ranks 2, 3 of 4 did not join '" + name_ + "' within 500 ms"));
  });
}

TEST_F(Rendezvous, AJoinedRankWhoseTimeIsOverNamesTheMissingOnes) {
  testing::spawn_processes(2, [&](int rank, int) {
    const Error error = create_error(options_of(name_, rank, 3, rank == 0 ? 10s : 500ms));
    EXPECT_EQ(error.code(), ErrorCode::kTimeout);
    EXPECT_THAT(error.text(), HasSubstr("waited for rank 2 of 3 to join '" + name_ + "', timed out after 500 ms"));
  });
}

TEST_F(Rendezvous, WithoutRankZeroTheOthersSaySo) {
  const Error error = create_error(options_of(name_, 1, 2, 200ms));
  EXPECT_EQ(error.code(), ErrorCode::kTimeout);
  EXPECT_THAT(error.text(), HasSubstr("no rank 0 at '" + name_ + "' within 200 ms"));
}

// A rank is killed after it joined and before the others have: D7, at init.
TEST_F(Rendezvous, ARankKilledOnTheWayIsNamedByAll) {
  for (int round = 0; round < 10; ++round) {
    const std::string name = testing::unique_name();
    testing::SharedCells cells;
    testing::ProcessGroup group(4, [&](int rank, int size) {
      if (rank == 3) return void(testing::eventually([&] { return cells[0] == 1; }));  // never joins
      if (rank == 2) {
        // Killed while it waits for rank 3, by another thread of its own.
        std::thread([&] {
          testing::eventually([&] { return testing::mappings_with("echo_comm:" + name) > 0; });
          kill(getpid(), SIGKILL);
        }).detach();
      }
      const Error error = create_error(options_of(name, rank, size));
      EXPECT_EQ(error.code(), ErrorCode::kPeer);
      EXPECT_THAT(error.text(), HasSubstr("rank 2 died while '" + name + "' was being created"));
      if (rank == 0) cells[0] = 1;
    });
    const auto results = group.wait();
    EXPECT_EQ(results[2].signal, SIGKILL);
    for (const int r : {0, 1}) EXPECT_TRUE(results[static_cast<std::size_t>(r)].passed) << results[r].text;
  }
}

TEST_F(Rendezvous, RankZeroKilledOnTheWayIsNamedByAll) {
  testing::ProcessGroup group(3, [&](int rank, int size) {
    if (rank == 2) return;  // never joins
    if (rank == 0) {
      // Rank 1 is there once a second process holds a lock; simpler to see from outside, see below.
      static_cast<void>(create_error(options_of(name_, rank, size)));
      return;
    }
    std::thread watcher([&] {
      testing::eventually([&] { return testing::mappings_with("echo_comm:" + name_) > 0; });
      kill(getppid(), SIGUSR1);
    });
    const Error error = create_error(options_of(name_, rank, size));
    watcher.join();
    EXPECT_EQ(error.code(), ErrorCode::kPeer);
    EXPECT_THAT(error.text(), HasSubstr("rank 0 died while '" + name_ + "' was being created"));
  });
  static volatile sig_atomic_t mapped = 0;
  mapped = 0;
  struct sigaction old {};
  struct sigaction action {};
  action.sa_handler = [](int) { mapped = 1; };
  sigaction(SIGUSR1, &action, &old);
  EXPECT_TRUE(testing::eventually([&] { return mapped == 1; }));
  group.kill(0, SIGKILL);
  const auto results = group.wait();
  sigaction(SIGUSR1, &old, nullptr);
  EXPECT_TRUE(results[1].passed) << results[1].text;
}

// ---- strangers -------------------------------------------------------------------------------------------------

// Connects and sends garbage, half a Hello, nothing at all, a rank that does not exist; then the real ranks join.
TEST_F(Rendezvous, GarbageOnTheJoinSocketDisturbsNobody) {
  testing::SharedCells cells;
  testing::spawn_processes(4, [&](int rank, int) {
    if (rank < 3) {
      if (rank > 0) {
        EXPECT_TRUE(testing::eventually([&] { return cells[0] == 1; }));
      }
      return expect_works(*create_shm(options_of(name_, rank, 3)));
    }
    std::vector<Fd> silent;
    testing::Random random(1);
    for (int i = 0; i < 200; ++i) {
      Fd socket = open_socket(SOCK_SEQPACKET);
      EXPECT_TRUE(testing::eventually([&] { return connect_to(socket, join_address(name_)) == 0; }));
      Hello hello;
      hello.rank = i % 2 == 0 ? 3 : -1;
      hello.size = 3;
      hello.slot_bytes = Region(3, 0).slot_bytes();
      char garbage[2000];
      for (char& byte : garbage) byte = static_cast<char>(random.next());
      if (i % 4 == 0) send_message(socket, garbage, 1 + random.below(sizeof garbage));
      if (i % 4 == 1) send_message(socket, &hello, sizeof hello);
      if (i % 4 == 2) send_message(socket, &hello, 8 + random.below(4));
      silent.push_back(std::move(socket));
    }
    cells[0] = 1;
    // Stays connected until it is dropped or the rendezvous is over.
    for (Fd& socket : silent) {
      pollfd event{socket.get(), POLLIN, 0};
      poll(&event, 1, 10'000);
    }
  });
}

TEST_F(Rendezvous, AProcessOfAnotherUserIsDroppedAndItDoesNotTrustUs) {
  if (!can_become_another_user()) GTEST_SKIP() << "needs root, to become another user";
  testing::SharedCells cells;
  testing::spawn_processes(3, [&](int rank, int) {
    if (rank < 2) {
      if (rank == 1) {
        EXPECT_TRUE(testing::eventually([&] { return cells[0] == 1; }));
      }
      return expect_works(*create_shm(options_of(name_, rank, 2)));
    }
    const SocketAddress address = join_address(name_);  // the address of user 0
    ASSERT_EQ(setuid(65534), 0);
    Fd socket = open_socket(SOCK_SEQPACKET);
    EXPECT_TRUE(testing::eventually([&] { return connect_to(socket, address) == 0; }));
    EXPECT_NE(peer_user(socket), geteuid());
    Hello hello;
    hello.rank = 1;
    hello.size = 2;
    hello.slot_bytes = Region(2, 0).slot_bytes();
    send_message(socket, &hello, sizeof hello);
    Note note;
    Fd file;
    ssize_t got = -1;
    EXPECT_TRUE(testing::eventually([&] { return (got = read_message(socket, &note, sizeof note, &file)) >= 0; }));
    EXPECT_EQ(got, 0) << "was answered";
    EXPECT_FALSE(file);
    cells[0] = 1;
  });
}

// Somebody of another user sits on our name: the ranks refuse to talk to him.
TEST_F(Rendezvous, ANameHeldByAnotherUserIsRefused) {
  if (!can_become_another_user()) GTEST_SKIP() << "needs root, to become another user";
  testing::SharedCells cells;
  testing::spawn_processes(2, [&](int rank, int) {
    if (rank == 1) {
      EXPECT_TRUE(testing::eventually([&] { return cells[0] == 1; }));
      const Error error = create_error(options_of(name_, 1, 2));
      EXPECT_EQ(error.code(), ErrorCode::kState);
      EXPECT_THAT(error.text(), HasSubstr("held by a process of user 65534, this rank runs as user 0"));
      cells[1] = 1;
      return;
    }
    const SocketAddress address = join_address(name_);
    ASSERT_EQ(setuid(65534), 0);
    Fd socket = open_socket(SOCK_SEQPACKET);
    ASSERT_EQ(bind_to(socket, address), 0);
    ASSERT_EQ(listen(socket.get(), 4), 0);
    cells[0] = 1;
    EXPECT_TRUE(testing::eventually([&] { return cells[1] == 1; }));
  });
}

TEST_F(Rendezvous, ALibraryOfAnotherVersionIsToldSo) {
  testing::spawn_processes(2, [&](int rank, int) {
    if (rank == 0) {
      const Error error = create_error(options_of(name_, 0, 2));
      EXPECT_EQ(error.code(), ErrorCode::kMismatch);
      EXPECT_THAT(error.text(), HasSubstr("uses rendezvous version 99, rank 0 uses 1"));
      return;
    }
    Fd socket = open_socket(SOCK_SEQPACKET);
    EXPECT_TRUE(testing::eventually([&] { return connect_to(socket, join_address(name_)) == 0; }));
    Hello hello;
    hello.version = 99;
    send_message(socket, &hello, 20);
    Note note;
    EXPECT_TRUE(testing::eventually([&] { return read_message(socket, &note, sizeof note) > 0; }));
    EXPECT_EQ(note.error().code(), ErrorCode::kMismatch);
  });
}

}  // namespace
}  // namespace echo_comm::core
