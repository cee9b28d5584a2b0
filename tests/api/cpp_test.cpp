// The C++ layer of echo.hpp: what the other tests do not call through it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <echo_comm/echo.hpp>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace echo_comm {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

void on_ranks(int size, const std::function<void(Communicator&)>& body, const Config& config = {}) {
  std::vector<Communicator> comms = Communicator::create_all(size, config);
  std::vector<std::thread> threads;
  threads.reserve(comms.size());
  for (Communicator& comm : comms) threads.emplace_back([&] { body(comm); });
  for (std::thread& thread : threads) thread.join();
}

std::string error_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Exception& error) {
    EXPECT_EQ(error.code(), ECHO_ERROR_ARGUMENT);
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Cpp, PartsAreScatteredAndGathered) {
  on_ranks(3, [](Communicator& comm) {
    const std::vector<std::size_t> counts = {64, 0, 136};
    const Call exact{.bits = ECHO_BITS_EXACT};
    std::vector<float> in(200, 1.0F + static_cast<float>(comm.rank()));
    std::vector<float> part(counts[static_cast<std::size_t>(comm.rank())]);
    comm.reduce_scatter(in, part, counts, exact);
    EXPECT_THAT(part, Each(6.0F));
    std::vector<float> whole(200);
    comm.all_gather(part, whole, counts, exact);
    EXPECT_THAT(whole, Each(6.0F));

    std::array<Bfloat16, 192> equal{};  // parts of 64
    std::array<Bfloat16, 64> third{};
    comm.reduce_scatter(equal, third);
    comm.all_gather(std::span<const Bfloat16>(third), std::span(equal));
    EXPECT_EQ(comm.stats().calls, 4U);
  });
}

TEST(Cpp, BuffersOfTheWrongLengthAreNamed) {
  on_ranks(2, [](Communicator& comm) {
    std::vector<float> whole(130), part(64);
    EXPECT_THAT(error_of([&] { comm.reduce_scatter(whole, part); }), AllOf(HasSubstr("64"), HasSubstr("65")));
    EXPECT_THAT(error_of([&] { comm.all_gather(part, whole); }), AllOf(HasSubstr("64"), HasSubstr("65")));
    const std::vector<std::size_t> three = {64, 64, 2};
    EXPECT_THAT(error_of([&] { comm.reduce_scatter(whole, part, three); }),
                AllOf(HasSubstr("3"), HasSubstr("2 ranks")));
    EXPECT_THAT(error_of([&] { static_cast<void>(comm.start_all_reduce(whole, part)); }),
                AllOf(HasSubstr("130"), HasSubstr("64")));
  });
}

TEST(Cpp, BroadcastAndBarrier) {
  on_ranks(3, [](Communicator& comm) {
    std::vector<float> data(100, static_cast<float>(comm.rank()));
    comm.broadcast(data, 2);
    comm.barrier();
    EXPECT_THAT(data, Each(2.0F));
    EXPECT_GE(comm.stats().control_calls, 2U);
  });
}

TEST(Cpp, StartedCallsEndInTheirOrder) {
  on_ranks(2, [](Communicator& comm) {
    const Call exact{.bits = ECHO_BITS_EXACT};
    std::vector<float> a(1000, 1.0F), b(128, 2.0F), b_part(64), c(128), c_part(64, 3.0F);
    std::vector<Request> requests;
    requests.push_back(comm.start_all_reduce(a, a, exact));
    requests.push_back(comm.start_reduce_scatter(b, b_part, {}, exact));
    requests.push_back(comm.start_all_gather(c_part, c, {}, exact));
    requests.back().wait();
    for (Request& request : requests) {
      EXPECT_TRUE(request.done());
      request.wait();
      request.wait();
    }
    EXPECT_THAT(a, Each(2.0F));
    EXPECT_THAT(b_part, Each(4.0F));
    EXPECT_THAT(c, Each(3.0F));
  });
}

TEST(Cpp, ADroppedRequestIsWaitedFor) {
  on_ranks(2, [](Communicator& comm) {
    std::vector<float> data(100'000, 1.0F);
    { const Request dropped = comm.start_all_reduce(data, data, {.bits = ECHO_BITS_EXACT}); }
    EXPECT_THAT(data, Each(2.0F));
  });
}

TEST(Cpp, TheErrorOfAStartedCallComesFromWait) {
  on_ranks(2, [](Communicator& comm) {
    std::vector<float> data(100, 1.0F);
    Request request = comm.start_all_reduce(data, data, {.bits = comm.rank() == 0 ? 4 : 5});
    try {
      request.wait();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Exception& error) {
      EXPECT_EQ(error.code(), ECHO_ERROR_MISMATCH);
      EXPECT_THAT(error.what(), AllOf(HasSubstr("q4"), HasSubstr("q5")));
    }
  });
}

// G1: a pass that was saved and loaded goes on with the same bits; what does not fit is refused.
TEST(Cpp, ASavedPassGoesOnWithTheSameBits) {
  on_ranks(3, [](Communicator& comm) {
    const auto input = [&](int call) {
      std::vector<float> values(500);
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = std::sin(static_cast<float>(static_cast<int>(i) * (call + 2) + comm.rank()));
      }
      return values;
    };
    Feedback feedback(comm, 500);
    const auto sum = [&](const Feedback& state, int call) {
      std::vector<float> values = input(call);
      comm.all_reduce(values, {.feedback = &state});
      return values;
    };
    for (int call = 0; call < 3; ++call) sum(feedback, call);
    const std::vector<std::byte> state = feedback.save();
    Feedback other(comm, 500);
    other.load(state);
    for (int call = 3; call < 6; ++call) EXPECT_EQ(sum(feedback, call), sum(other, call));
    EXPECT_THAT(error_of([&] { Feedback(comm, 499).load(state); }), HasSubstr("499"));
    EXPECT_THAT(error_of([&] { other.load({}); }), HasSubstr("ends too early"));
    std::size_t bytes = 3;
    EXPECT_EQ(echo_feedback_save(feedback.get(), &bytes, &bytes), ECHO_ERROR_ARGUMENT);
    EXPECT_EQ(bytes, state.size());
  });
}

TEST(Cpp, PathsAndTableAreToldByTheCommunicator) {
  on_ranks(2,
           [](Communicator& comm) {
             EXPECT_THAT(comm.table(), HasSubstr("all_reduce 1K exact"));
             EXPECT_EQ(comm.choose(ECHO_ALL_REDUCE, 512).kind, ECHO_PATH_EXACT);
             EXPECT_EQ(comm.choose(ECHO_ALL_REDUCE, 513).kind, ECHO_PATH_CODED);
             EXPECT_EQ(comm.choose(ECHO_ALL_REDUCE, 512, {.bits = 4}).kind, ECHO_PATH_CODED);
             std::vector<float> data(512, 1.0F);
             comm.all_reduce(data);
             EXPECT_EQ(comm.last_path().kind, ECHO_PATH_EXACT);
             EXPECT_STREQ(comm.last_path().reason, "the table sends this size exactly");
           },
           {.table = "all_reduce 1K exact"});
}

}  // namespace
}  // namespace echo_comm
