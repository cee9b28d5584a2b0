// What is sent arrives: every byte, in order, on every route, for all numbers of ranks, as threads and as processes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include "testing/transports.hpp"
#include "transport/gloo/gloo.hpp"
#include "transport/inproc/inproc.hpp"
#include "transport/shm/shm.hpp"

namespace echo_comm::core {
namespace {

using namespace std::chrono_literals;
using testing::Kind;

Deadline soon() { return Deadline::in(30s); }

// The bytes of message `number` from `from` on a route are known to both sides.
uint64_t word_of(int from, int route, uint64_t number, std::size_t index) {
  return testing::Random(number * 1000003 + static_cast<uint64_t>(from * 131 + route) * 7919 + index).next();
}

void send(Transport& transport, int to, uint64_t number, std::size_t words) {
  const auto room = transport.acquire(to, soon());
  ASSERT_EQ(reinterpret_cast<uintptr_t>(room.data()) % 64, 0U);
  ASSERT_LE(8 * words, room.size());
  for (std::size_t i = 0; i < words; ++i) {
    const uint64_t word = word_of(transport.rank(), to, number, i);
    std::memcpy(room.data() + 8 * i, &word, 8);
  }
  transport.commit(to, 8 * words);
}

void expect(Transport& transport, int from, Route route, uint64_t number, std::size_t words) {
  const auto message = transport.receive(from, route, soon());
  ASSERT_EQ(message.size(), 8 * words) << "message " << number << " from " << from;
  const int to = route == Route::kEveryone ? kEveryone : transport.rank();
  for (std::size_t i = 0; i < words; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, message.data() + 8 * i, 8);
    ASSERT_EQ(word, word_of(from, to, number, i)) << "word " << i << " of message " << number << " from " << from;
  }
  transport.release(from, route);
}

class Messages : public ::testing::TestWithParam<std::tuple<Kind, int>> {
 protected:
  void SetUp() override {
    if (const std::string why = testing::cannot_test(kind()); !why.empty()) GTEST_SKIP() << why;
  }
  static Kind kind() { return std::get<0>(GetParam()); }
  static int size() { return std::get<1>(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(All, Messages,
                         ::testing::Combine(::testing::Values(Kind::kInproc, Kind::kShm, Kind::kGlooInProcess,
                                                              Kind::kGloo),
                                            ::testing::Values(1, 2, 3, 4, 5, 7, 8)),
                         [](const auto& param) {
                           return std::string(testing::name_of(std::get<0>(param.param))) + "_" +
                                  std::to_string(std::get<1>(param.param));
                         });

// Both routes in turn, sizes that change with every message, the largest among them. D5
TEST_P(Messages, ArriveWholeAndInOrderOnAllRoutes) {
  over(
      kind(), size(),
      [](Transport& transport) {
        const std::size_t most = transport.max_message() / 8;
        testing::Random sizes(42);  // the same on all ranks
        for (uint64_t number = 0; number < 300; ++number) {
          const std::size_t words = number % 50 == 7 ? most : sizes.below(std::min<std::size_t>(most, 40) + 1);
          for (int to = 0; to < transport.size(); ++to) {
            if (to != transport.rank()) send(transport, to, number, words);
          }
          send(transport, kEveryone, number, words / 2);
          for (int from = 0; from < transport.size(); ++from) {
            if (from == transport.rank()) continue;
            expect(transport, from, Route::kPair, number, words);
            expect(transport, from, Route::kEveryone, number, words / 2);
            if (HasFatalFailure()) return;
          }
        }
      },
      4096);
}

// 10^5 and more small messages of known integers round a ring, many in flight, nobody in step. D4
TEST_P(Messages, ManySmallOnesOfKnownIntegersRoundARing) {
  const bool slow = testing::kThreadSanitizer || testing::kAddressSanitizer;
  // Over a network each message costs several system calls and wake-ups.
  const bool network = kind() == Kind::kGloo || kind() == Kind::kGlooInProcess;
  const uint64_t count = (slow || network ? 40'000 : 200'000) / static_cast<uint64_t>(size() * (network ? 4 : 1));
  over(kind(), size(), [count](Transport& transport) {
    if (transport.size() == 1) return;
    const int next = (transport.rank() + 1) % transport.size();
    const int before = (transport.rank() + transport.size() - 1) % transport.size();
    const Deadline deadline = Deadline::in(100s);
    for (uint64_t n = 0; n < count; ++n) {
      const uint64_t sent = n * 64 + static_cast<uint64_t>(transport.rank());
      std::memcpy(transport.acquire(next, deadline).data(), &sent, 8);
      transport.commit(next, 8);
      uint64_t got = 0;
      std::memcpy(&got, transport.receive(before, Route::kPair, deadline).data(), 8);
      ASSERT_EQ(got, n * 64 + static_cast<uint64_t>(before));
      transport.release(before, Route::kPair);
    }
  });
}

// The sender runs ahead as far as it can; one reader is late at random. What it reads is never a later message. D3
TEST_P(Messages, ASlowReaderNeverSeesOverwrittenBytes) {
  over(
      kind(), size(),
      [](Transport& transport) {
        testing::Random random(static_cast<uint64_t>(transport.rank()));
        for (uint64_t number = 0; number < 400; ++number) {
          if (transport.rank() == 0) {
            send(transport, kEveryone, number, 500);
            continue;
          }
          const auto message = transport.receive(0, Route::kEveryone, soon());
          if (random.below(8) == 0) {
            const auto end = Deadline::Clock::now() + std::chrono::microseconds(random.below(2000));
            while (Deadline::Clock::now() < end) std::this_thread::yield();
          }
          const auto again = transport.receive(0, Route::kEveryone, soon());
          ASSERT_EQ(again.data(), message.data()) << "receiving again without release gives the same message";
          expect(transport, 0, Route::kEveryone, number, 500);
          if (HasFatalFailure()) return;
        }
      },
      4096);
}

// A sleeping rank is woken by what it waits for. If it only woke to look at its peers' lives (every 100 ms), the 600
// waits here, for room on rank 0 and for messages on the others, would take a minute.
TEST_P(Messages, WakeASleepingRank) {
  const auto begin = Deadline::Clock::now();
  over(kind(), size(), [](Transport& transport) {
    const auto outlast_spinning = [] {
      const auto end = Deadline::Clock::now() + 200us;
      while (Deadline::Clock::now() < end) std::this_thread::yield();
    };
    for (uint64_t number = 0; number < 600; ++number) {
      if (transport.rank() == 0) {
        if (number >= 300) outlast_spinning();
        send(transport, kEveryone, number, 1);
      } else {
        if (number < 300) outlast_spinning();
        expect(transport, 0, Route::kEveryone, number, 1);
      }
    }
  });
  EXPECT_LT(Deadline::Clock::now() - begin, 15s);
}

TEST_P(Messages, StayReadableToTheSenderUntilItAcquiredAsManyAsThereAreSlots) {
  over(kind(), size(), [](Transport& transport) {
    if (transport.size() == 1) return;
    std::byte* written[6] = {};
    for (uint64_t number = 0; number < 6; ++number) {
      const auto room = transport.acquire(kEveryone, soon());
      written[number] = room.data();
      std::memset(room.data(), static_cast<int>(number), 64);
      transport.commit(kEveryone, 64);
      if (number > 0) {
        ASSERT_EQ(*written[number - 1], static_cast<std::byte>(number - 1));
      }
      for (int from = 0; from < transport.size(); ++from) {
        if (from == transport.rank()) continue;
        ASSERT_EQ(transport.receive(from, Route::kEveryone, soon())[63], static_cast<std::byte>(number));
        transport.release(from, Route::kEveryone);
      }
    }
  });
}

TEST_P(Messages, ArrivalTellsTheRoute) {
  over(kind(), size(), [](Transport& transport) {
    if (transport.size() == 1) return;
    if (transport.rank() == 0) {
      for (uint64_t number = 0; number < 100; ++number) {
        if (number % 3 == 0) {
          send(transport, kEveryone, number, 1);
        } else {
          for (int to = 1; to < transport.size(); ++to) send(transport, to, number, 1);
        }
        for (int r = 1; r < transport.size(); ++r) expect(transport, r, Route::kPair, number, 1);
      }
      return;
    }
    for (uint64_t number = 0; number < 100; ++number) {
      const Route expected = number % 3 == 0 ? Route::kEveryone : Route::kPair;
      ASSERT_EQ(transport.arrival(0, Route::kPair, soon()), expected) << "message " << number;
      expect(transport, 0, expected, number, 1);
      send(transport, 0, number, 1);
    }
  });
}

// Messages of two communicators of the same ranks, in orders that differ by rank, do not mix. D5
TEST_P(Messages, OfTwoCommunicatorsDoNotMix) {
  if (size() == 1) GTEST_SKIP() << "needs a peer";
  const auto talk = [](Transport& a, Transport& b) {
    for (uint64_t number = 0; number < 200; ++number) {
      Transport& first = (number + static_cast<uint64_t>(a.rank())) % 2 == 0 ? a : b;
      Transport& second = &first == &a ? b : a;
      send(first, kEveryone, &first == &a ? number : number + 5000, 3);
      send(second, kEveryone, &second == &a ? number : number + 5000, 3);
      for (int from = 0; from < a.size(); ++from) {
        if (from == a.rank()) continue;
        expect(b, from, Route::kEveryone, number + 5000, 3);
        expect(a, from, Route::kEveryone, number, 3);
      }
    }
  };
  if (!testing::forks(kind())) {
    const bool gloo = kind() == Kind::kGlooInProcess;
    auto as = gloo ? create_gloo_in_process(size(), 4096) : create_inproc(size(), 4096);
    auto bs = gloo ? create_gloo_in_process(size(), 4096) : create_inproc(size(), 4096);
    // Each rank's transports go with its thread, as a rank that leaves waits for the others to see it.
    testing::spawn_threads(size(), [&](int rank, int) {
      const auto a = std::move(as[rank]);
      const auto b = std::move(bs[rank]);
      talk(*a, *b);
    });
    return;
  }
  if (kind() == Kind::kGloo) {
    const testing::TemporaryDirectory directory;
    testing::spawn_processes(size(), [&](int rank, int ranks) {
      GlooOptions options;
      options.directory = directory.path();
      options.interface = "lo";
      options.rank = rank;
      options.size = ranks;
      const auto a = create_gloo(options);  // one job after the other in one directory
      const auto b = create_gloo(options);
      talk(*a, *b);
    });
    return;
  }
  const std::string name = testing::unique_name();
  testing::spawn_processes(size(), [&](int rank, int ranks) {
    ShmOptions options{name + ".a", rank, ranks};
    const auto a = create_shm(options);
    options.name = name + ".b";
    const auto b = create_shm(options);
    talk(*a, *b);
  });
}

TEST_P(Messages, OfZeroBytesCount) {
  over(kind(), size(), [](Transport& transport) {
    for (int n = 0; n < 10; ++n) {
      static_cast<void>(transport.acquire(kEveryone, soon()));
      transport.commit(kEveryone, 0);
      for (int from = 0; from < transport.size(); ++from) {
        if (from == transport.rank()) continue;
        ASSERT_EQ(transport.receive(from, Route::kEveryone, soon()).size(), 0U);
        transport.release(from, Route::kEveryone);
      }
    }
  });
}

TEST(WaitStats, CountWaitsThatWereNotSatisfiedAtOnce) {
  auto transports = create_inproc(2);
  send(*transports[0], 1, 0, 1);
  Transport& reader = *transports[1];
  expect(reader, 0, Route::kPair, 0, 1);
  EXPECT_EQ(reader.wait_stats().waits, 0U);
  EXPECT_THROW(static_cast<void>(reader.receive(0, Route::kPair, Deadline::in(20ms))), Error);
  EXPECT_EQ(reader.wait_stats().waits, 1U);
  EXPECT_GE(reader.wait_stats().wait_ns, 15'000'000U);
}

}  // namespace
}  // namespace echo_comm::core
