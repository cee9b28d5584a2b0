// Ranks that disagree get an error on every rank that names both sides (D1, D2, R8); a rank's own wrong arguments are
// its own error and cost nothing.
#include <gmock/gmock.h>

#include "tests/collective/support.hpp"

namespace echo_comm::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// What one rank does in the call that disagrees.
struct Arguments {
  std::size_t count = 1000;
  echo_dtype_t dtype = ECHO_FLOAT32;
  bool feedback = false;
  echo_call_t call = ECHO_CALL_INITIALIZER;
};

struct Disagreement {
  const char* name;
  std::function<void(Arguments&)> odd_one;  // changes what the last rank does
  std::vector<const char*> words;           // in the text on every rank
};

const std::vector<Disagreement> kDisagreements = {
    {"Count", [](Arguments& a) { a.count = 2000; }, {"1000 elements", "2000 elements", "same count"}},
    {"CountAcrossAlgorithms", [](Arguments& a) { a.count = 1'000'000; }, {"1000 elements", "1000000 elements"}},
    {"NothingOnOneRank", [](Arguments& a) { a.count = 0; }, {"1000 elements", "0 elements"}},  // B4
    {"Type", [](Arguments& a) { a.dtype = ECHO_BFLOAT16; }, {"fp32", "bf16", "same type"}},
    {"Bits", [](Arguments& a) { a.call.bits = 5; }, {"q4", "q5", "same options"}},
    {"ExactAgainstCoded", [](Arguments& a) { a.call.bits = ECHO_BITS_EXACT; }, {"q4", "exact"}},
    {"Operation", [](Arguments& a) { a.call.op = ECHO_AVG; }, {"SUM", "AVG"}},
    {"Feedback", [](Arguments& a) { a.feedback = true; }, {"feedback on", "feedback off"}},
    {"Flush", [](Arguments& a) { a.call.flush = 1; }, {"flush", "q8"}},
    {"Rotation", [](Arguments& a) { a.call.rotation = ECHO_OFF; }, {"without rotation"}},
    {"RowLength", [](Arguments& a) { a.call.row_length = 100; }, {"rows of 100", "same row length"}},
    {"OneShotAgainstTwoShot", [](Arguments& a) { a.call.algorithm = ECHO_TWO_SHOT; }, {"one-shot", "two-shot"}},
};

struct Parameter {
  Kind kind;
  int size;
  std::size_t disagreement;
};

class Mismatch : public ::testing::TestWithParam<Parameter> {
 protected:
  void SetUp() override {
    if (const std::string why = cannot_test(GetParam().kind); !why.empty()) GTEST_SKIP() << why;
  }
};

std::vector<Parameter> parameters() {
  std::vector<Parameter> all;
  for (std::size_t i = 0; i < kDisagreements.size(); ++i) {
    for (const int size : {2, 3, 5}) all.push_back({Kind::kInproc, size, i});
    all.push_back({Kind::kShm, 3, i});
    all.push_back({Kind::kGloo, 3, i});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Ranks, Mismatch, ::testing::ValuesIn(parameters()), [](const auto& info) {
  return std::string(name_of(info.param.kind)) + std::to_string(info.param.size) +
         kDisagreements[info.param.disagreement].name;
});

TEST_P(Mismatch, IsAnErrorOnEveryRankThatNamesBothSides) {
  const Disagreement& disagreement = kDisagreements[GetParam().disagreement];
  SharedCells created;
  over_comm(GetParam().kind, GetParam().size, [&](echo_comm_t comm) {
    std::vector<float> data(1'000'000, 1.0F);
    const int odd_rank = echo_comm_size(comm) - 1;
    Arguments arguments;
    if (echo_comm_rank(comm) == odd_rank) disagreement.odd_one(arguments);
    echo_feedback_t feedback = nullptr;
    if (arguments.feedback) {
      ASSERT_EQ(echo_feedback_create(comm, arguments.count, ECHO_STORE_FP32, &feedback), ECHO_SUCCESS);
    }
    ++created[0];  // a failure reaches whoever waits, in creation too
    ASSERT_TRUE(eventually([&] { return created[0] == GetParam().size; }));
    const int64_t before = now_ns();
    ASSERT_EQ(
        echo_all_reduce(data.data(), data.data(), arguments.count, arguments.dtype, comm, feedback, &arguments.call),
        ECHO_ERROR_MISMATCH)
        << echo_last_error();
    EXPECT_LT(now_ns() - before, 10'000'000'000) << "long before the timeout";
    const std::string text = echo_last_error();
    for (const char* word : disagreement.words) EXPECT_THAT(text, HasSubstr(word));
    EXPECT_THAT(text, AllOf(HasSubstr("rank " + std::to_string(odd_rank)), HasSubstr("call 1")));
    // The communicator has failed; later calls say why at once.
    ASSERT_EQ(echo_all_reduce(data.data(), data.data(), 10, ECHO_FLOAT32, comm, nullptr, nullptr), ECHO_ERROR_MISMATCH);
    EXPECT_THAT(echo_last_error(), HasSubstr(disagreement.words.front()));
    echo_feedback_destroy(feedback);
  });
}

// D2: a rank that makes a call more than its peers, and peers that never come.
TEST(Mismatch, ACallThatOnlyOneRankMakesTimesOutAndNamesTheCalls) {
  echo_config_t config ECHO_CONFIG_INITIALIZER;
  config.timeout_ms = 500;
  SharedCells cells;
  over_comm(
      Kind::kShm, 3,
      [&](echo_comm_t comm) {
        std::vector<float> data(1000, 1.0F);
        ASSERT_EQ(echo_all_reduce(data.data(), data.data(), 1000, ECHO_FLOAT32, comm, nullptr, nullptr), ECHO_SUCCESS);
        if (echo_comm_rank(comm) == 1) {
          EXPECT_EQ(echo_all_reduce(data.data(), data.data(), 1000, ECHO_FLOAT32, comm, nullptr, nullptr),
                    ECHO_ERROR_TIMEOUT);
          EXPECT_THAT(echo_last_error(), AllOf(HasSubstr("call 2"), HasSubstr("rank"), HasSubstr("call 1")));
          cells[0] = 1;
        }
        ASSERT_TRUE(eventually([&] { return cells[0] == 1; }));
      },
      config);
}

TEST(Mismatch, RanksMustAgreeOnTheSettings) {
  spawn_processes(2, [name = unique_name()](int rank, int) {
    echo_config_t config ECHO_CONFIG_INITIALIZER;
    config.batch_invariant = rank == 0 ? ECHO_ON : ECHO_OFF;
    const std::string url = "shm://" + name + "?rank=" + std::to_string(rank) + "&size=2";
    echo_comm_t comm = nullptr;
    EXPECT_EQ(echo_comm_create(url.c_str(), &config, &comm), ECHO_ERROR_MISMATCH) << echo_last_error();
    EXPECT_EQ(comm, nullptr);
  });
}

// A rank's own wrong arguments: an error before anything is sent; the next call works.
TEST(Arguments, WrongOnesCostNothing) {
  over_comm(Kind::kInproc, 2, [&](echo_comm_t comm) {
    std::vector<float> data(256, 1.0F);
    std::vector<float> out(256);
    echo_feedback_t small = nullptr;
    ASSERT_EQ(echo_feedback_create(comm, 100, ECHO_STORE_FP32, &small), ECHO_SUCCESS);
    const auto call = [&](const void* in, void* to, std::size_t count, int dtype, echo_comm_t on,
                          echo_feedback_t feedback, const std::function<void(echo_call_t&)>& change = {}) {
      echo_call_t options ECHO_CALL_INITIALIZER;
      if (change) change(options);
      const echo_result_t result =
          echo_all_reduce(in, to, count, static_cast<echo_dtype_t>(dtype), on, feedback, &options);
      return result == ECHO_ERROR_ARGUMENT ? std::string(echo_last_error()) : "result " + std::to_string(result);
    };
    float* in = data.data();
    EXPECT_THAT(call(nullptr, out.data(), 256, ECHO_FLOAT32, comm, nullptr), HasSubstr("in is NULL"));
    EXPECT_THAT(call(in, nullptr, 256, ECHO_FLOAT32, comm, nullptr), HasSubstr("out is NULL"));
    EXPECT_THAT(call(in, in, 256, ECHO_FLOAT32, nullptr, nullptr), HasSubstr("comm is NULL"));
    EXPECT_THAT(call(in, in, 256, 3, comm, nullptr), HasSubstr("dtype: 3"));
    EXPECT_THAT(call(in, in, SIZE_MAX, ECHO_FLOAT32, comm, nullptr), HasSubstr("count"));
    EXPECT_THAT(call(in, in, SIZE_MAX / 4, ECHO_FLOAT32, comm, nullptr), HasSubstr("largest tensor"));
    EXPECT_THAT(call(reinterpret_cast<std::byte*>(in) + 2, out.data(), 10, ECHO_FLOAT32, comm, nullptr),
                HasSubstr("not aligned"));  // B5
    EXPECT_THAT(call(in, in + 10, 100, ECHO_FLOAT32, comm, nullptr), HasSubstr("overlap"));
    EXPECT_THAT(call(in, in, 256, ECHO_FLOAT32, comm, small), HasSubstr("created for 100 elements"));
    EXPECT_THAT(call(in, in, 256, ECHO_FLOAT32, comm, nullptr, [](echo_call_t& c) { c.bits = 7; }),
                HasSubstr("bits: 7"));
    EXPECT_THAT(call(in, in, 256, ECHO_FLOAT32, comm, nullptr, [](echo_call_t& c) { c.row_length = 100; }),
                HasSubstr("does not divide"));
    EXPECT_THAT(
        call(in, in, 256, ECHO_FLOAT32, comm, nullptr, [](echo_call_t& c) { c.op = static_cast<echo_op_t>(2); }),
        HasSubstr("op: 2"));
    EXPECT_THAT(call(in, in, 256, ECHO_FLOAT32, comm, nullptr, [](echo_call_t& c) { c.flush = 2; }),
                HasSubstr("flush: 2"));
    EXPECT_THAT(call(in, in, 256, ECHO_FLOAT32, comm, nullptr,
                     [](echo_call_t& c) { c.algorithm = static_cast<echo_algorithm_t>(9); }),
                HasSubstr("algorithm: 9"));
    EXPECT_THAT(call(in, in, 256, ECHO_FLOAT32, comm, nullptr, [](echo_call_t& c) { c.size = 1 << 20; }),
                HasSubstr("size is"));
    EXPECT_THAT(call(in, in, 256, ECHO_FLOAT32, comm, nullptr,
                     [](echo_call_t& c) { c.rotation = static_cast<echo_switch_t>(5); }),
                HasSubstr("rotation: 5"));
    ASSERT_EQ(echo_all_reduce(in, in, 256, ECHO_FLOAT32, comm, nullptr, nullptr), ECHO_SUCCESS) << echo_last_error();
    EXPECT_EQ(data[7], 2.0F);
    echo_feedback_destroy(small);
  });
}

// A call that differs from the pass is an error of every rank that makes it, and the pass goes on.
TEST(Arguments, ACallThatDoesNotFitThePassIsRefused) {
  over_comm(Kind::kInproc, 3, [&](echo_comm_t comm) {
    echo_feedback_t feedback = nullptr;
    ASSERT_EQ(echo_feedback_create(comm, 1000, ECHO_STORE_FP32, &feedback), ECHO_SUCCESS);
    std::vector<float> data(1000, 1.0F);
    const auto reduce = [&](std::size_t count) {
      return echo_all_reduce(data.data(), data.data(), count, ECHO_FLOAT32, comm, feedback, nullptr);
    };
    ASSERT_EQ(reduce(1000), ECHO_SUCCESS);
    EXPECT_EQ(reduce(500), ECHO_ERROR_STATE);
    EXPECT_THAT(echo_last_error(), HasSubstr("the pass began with 1000 elements"));
    EXPECT_EQ(reduce(1000), ECHO_SUCCESS);
    ASSERT_EQ(echo_feedback_reset(feedback), ECHO_SUCCESS);
    EXPECT_EQ(reduce(500), ECHO_SUCCESS);
    echo_feedback_destroy(feedback);
  });
}

TEST(Arguments, FeedbackBelongsToItsCommunicator) {
  std::vector<echo_comm_t> one(1);
  std::vector<echo_comm_t> other(1);
  ASSERT_EQ(echo_comm_create_all(1, nullptr, one.data()), ECHO_SUCCESS);
  ASSERT_EQ(echo_comm_create_all(1, nullptr, other.data()), ECHO_SUCCESS);
  echo_feedback_t feedback = nullptr;
  ASSERT_EQ(echo_feedback_create(one[0], 10, ECHO_STORE_FP32, &feedback), ECHO_SUCCESS);
  float x[10] = {};
  EXPECT_EQ(echo_all_reduce(x, x, 10, ECHO_FLOAT32, other[0], feedback, nullptr), ECHO_ERROR_STATE);
  echo_comm_destroy(one[0]);
  echo_comm_destroy(other[0]);
  echo_feedback_destroy(feedback);
}

}  // namespace
}  // namespace echo_comm::testing
