// numerics.md section 4: with both residuals the error of the running sum stays that of one call, at any depth (G3).
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>

#include "codec/group.hpp"
#include "tests/collective/support.hpp"

namespace echo_comm::testing {
namespace {

constexpr std::size_t kGroup = ECHO_GROUP;

// Inputs of a pass: what rank `rank` adds in call `call`.
using Source = std::function<std::vector<float>(int rank, int call)>;
// Options of a call of the pass.
using Plan = std::function<echo_call_t(int call)>;

// Rotation in fp64, the same butterflies.
void rotate(std::span<double> v) {
  for (double& x : v) x /= 8;
  for (std::size_t stride = 1; stride < kGroup; stride *= 2) {
    for (std::size_t i = 0; i < kGroup; ++i) {
      if ((i & stride) != 0) continue;
      const double a = v[i];
      const double b = v[i + stride];
      v[i] = a + b;
      v[i + stride] = a - b;
    }
  }
}

// Follows the running sums of a pass against fp64 and the bound, group by group.
class PassCheck {
 public:
  PassCheck(int size, std::size_t count)
      : size_(static_cast<std::size_t>(size)), error_(count), exact_(count), largest_(size_ * count / kGroup) {}

  // inputs: of all ranks; output: what every rank got.
  void add(const std::vector<std::vector<float>>& inputs, std::span<const float> output) {
    ++calls_;
    for (std::size_t i = 0; i < error_.size(); ++i) {
      double sum = 0;
      for (const std::vector<float>& in : inputs) sum += in[i];
      exact_[i] += sum;
      error_[i] += output[i] - sum;
    }
    for (std::size_t rank = 0; rank < size_; ++rank) {
      for (std::size_t group = 0; group < groups(); ++group) {
        std::vector<double> v(inputs[rank].begin() + static_cast<std::ptrdiff_t>(group * kGroup),
                              inputs[rank].begin() + static_cast<std::ptrdiff_t>((group + 1) * kGroup));
        rotate(v);
        double& largest = largest_[rank * groups() + group];
        for (const double x : v) largest = std::max(largest, std::abs(x));
      }
    }
  }

  // Largest error of any group, as a multiple of what the bound allows; <= 1 means the bound holds.
  [[nodiscard]] double worst() const {
    double worst = 0;
    for (std::size_t group = 0; group < groups(); ++group) {
      std::vector<double> v(error_.begin() + static_cast<std::ptrdiff_t>(group * kGroup),
                            error_.begin() + static_cast<std::ptrdiff_t>((group + 1) * kGroup));
      rotate(v);
      double error = 0;
      for (const double x : v) error = std::max(error, std::abs(x));
      double s = 0;
      for (std::size_t rank = 0; rank < size_; ++rank) s += largest_[rank * groups() + group];
      const double bound = 0.31 * s + calls_ * std::exp2(-22) * s;
      if (bound > 0) worst = std::max(worst, error / bound);
    }
    return worst;
  }

  // Norm of the error of the running sum over the norm of the exact running sum.
  [[nodiscard]] double relative() const {
    double error = 0;
    double exact = 0;
    for (std::size_t i = 0; i < error_.size(); ++i) {
      error += error_[i] * error_[i];
      exact += exact_[i] * exact_[i];
    }
    return std::sqrt(error / exact);
  }

 private:
  [[nodiscard]] std::size_t groups() const { return error_.size() / kGroup; }

  std::size_t size_;
  int calls_ = 0;
  std::vector<double> error_;
  std::vector<double> exact_;
  std::vector<double> largest_;  // S: [rank, group]
};

constexpr std::optional<echo_store_t> kNoFeedback;

struct Outcome {
  double worst = 0;     // over all calls, multiple of the bound
  double relative = 0;  // after the last call
};

// Runs one pass of `calls` calls on `size` ranks (threads) and follows it. No store: no feedback.
Outcome run_pass(int size, std::size_t count, int calls, const Source& source, const Plan& plan,
                 std::optional<echo_store_t> store) {
  Outcome outcome;
  PassCheck check(size, count);
  over_comm(Kind::kInproc, size, [&](echo_comm_t comm) {
    const int rank = echo_comm_rank(comm);
    echo_feedback_t feedback = nullptr;
    if (store) {
      ASSERT_EQ(echo_feedback_create(comm, count, *store, &feedback), ECHO_SUCCESS);
    }
    std::vector<float> out(count);
    for (int index = 0; index < calls; ++index) {
      const std::vector<float> in = source(rank, index);
      const echo_call_t call = plan(index);
      ASSERT_EQ(echo_all_reduce(in.data(), out.data(), count, ECHO_FLOAT32, comm, feedback, &call), ECHO_SUCCESS)
          << echo_last_error();
      if (rank != 0) continue;
      std::vector<std::vector<float>> inputs;
      for (int other = 0; other < size; ++other) inputs.push_back(source(other, index));
      check.add(inputs, out);
      outcome.worst = std::max(outcome.worst, check.worst());
    }
    echo_feedback_destroy(feedback);
  });
  outcome.relative = check.relative();
  return outcome;
}

// Recorded partial sums of a real model: 60 calls, 4 ranks, 32 tokens of 576 (bf16 bits).
class Traces {
 public:
  static constexpr int kCalls = 60;
  static constexpr int kRanks = 4;
  static constexpr std::size_t kCount = 32 * 576;

  // nullptr when the data is not there; `where` says what was tried.
  static std::unique_ptr<Traces> load(std::string& where) {
    const char* data = std::getenv("ECHO_DATA");
    const std::filesystem::path root = data != nullptr ? data : ECHO_TEST_SOURCE_DIR "/../shared/data";
    const std::filesystem::path file = root / "traces" / "smollm2_135m_tp4_t32.npy";
    where = file.string();
    std::ifstream in(file, std::ios::binary);
    if (!in) return nullptr;
    // NPY 1.0: magic, version, little-endian header length, header, raw values.
    char prefix[10] = {};
    in.read(prefix, sizeof prefix);
    const auto header = static_cast<unsigned char>(prefix[8]) + 256 * static_cast<unsigned char>(prefix[9]);
    in.seekg(header, std::ios::cur);
    auto traces = std::make_unique<Traces>();
    traces->bits_.resize(kCalls * kRanks * kCount);
    in.read(reinterpret_cast<char*>(traces->bits_.data()),
            static_cast<std::streamsize>(traces->bits_.size() * sizeof(uint16_t)));
    return in ? std::move(traces) : nullptr;
  }

  [[nodiscard]] std::vector<float> values(int rank, int call) const {
    const uint16_t* first = &bits_[static_cast<std::size_t>(call * kRanks + rank) * kCount];
    std::vector<float> values(kCount);
    std::transform(first, first + kCount, values.begin(), core::bf16_to_float);
    return values;
  }

 private:
  std::vector<uint16_t> bits_;
};

Plan four_bits(int calls, int flush_bits) {
  return [=](int call) {
    echo_call_t options ECHO_CALL_INITIALIZER;
    if (call == calls - 1 && flush_bits != 0) {
      options.flush = 1;
      options.bits = flush_bits;
    }
    return options;
  };
}

Plan alternating(int call_mod_offset) {
  return [=](int call) {
    echo_call_t options ECHO_CALL_INITIALIZER;
    switch ((call + call_mod_offset) % 3) {
      case 0: options.algorithm = ECHO_ONE_SHOT; break;
      case 1: options.algorithm = ECHO_TWO_SHOT; break;
      default: options.bits = ECHO_BITS_EXACT;
    }
    return options;
  };
}

class RecordedPartialSums : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string where;
    traces_ = Traces::load(where);
    if (traces_ == nullptr) GTEST_SKIP() << "no recorded partial sums at " << where << "; set ECHO_DATA";
  }
  Outcome run(const Plan& plan, std::optional<echo_store_t> store) {
    return run_pass(
        Traces::kRanks, Traces::kCount, Traces::kCalls,
        [this](int rank, int call) { return traces_->values(rank, call); }, plan, store);
  }
  std::unique_ptr<Traces> traces_;
};

TEST_F(RecordedPartialSums, StayWithinTheBoundAtEveryCallAndTheFlushPaysWhatIsOwed) {
  const Outcome none = run(four_bits(Traces::kCalls, 0), kNoFeedback);
  const Outcome unpaid = run(four_bits(Traces::kCalls, 0), ECHO_STORE_FP32);
  const Outcome eight = run(four_bits(Traces::kCalls, 8), ECHO_STORE_FP32);
  const Outcome exact = run(four_bits(Traces::kCalls, ECHO_BITS_EXACT), ECHO_STORE_FP32);
  std::cout << "relative error after 60 calls: no feedback " << none.relative << ", feedback without flush "
            << unpaid.relative << ", 8-bit flush " << eight.relative << ", exact flush " << exact.relative
            << "; worst error / bound: " << eight.worst << "\n";
  EXPECT_LE(unpaid.worst, 1.0);
  EXPECT_LE(eight.worst, 1.0);
  EXPECT_LE(exact.worst, 1.0);
  EXPECT_LT(eight.relative, 0.03 * none.relative);
  EXPECT_LT(exact.relative, 1e-5);
  EXPECT_GT(none.relative, 0.1) << "the recorded sums would not test anything";
}

// numerics.md section 8: integers lose little over the 60 calls of a model.
TEST_F(RecordedPartialSums, AreAsGoodWithResidualsKeptAsIntegers) {
  const Outcome none = run(four_bits(Traces::kCalls, 0), kNoFeedback);
  for (const echo_store_t store : {ECHO_STORE_AUTO, ECHO_STORE_INT8, ECHO_STORE_INT16}) {
    const Outcome eight = run(four_bits(Traces::kCalls, 8), store);
    const Outcome unpaid = run(four_bits(Traces::kCalls, 0), store);
    std::cout << "store " << store << ": relative error with an 8-bit flush " << eight.relative << ", without flush "
              << unpaid.relative << "; worst error / bound " << unpaid.worst << "\n";
    EXPECT_LT(eight.relative, 0.03 * none.relative);
    EXPECT_LE(unpaid.worst, 1.0);
  }
}

TEST_F(RecordedPartialSums, StayWithinTheBoundWhenAlgorithmsAlternate) {
  for (const int offset : {0, 1, 2})
    EXPECT_LE(run(alternating(offset), ECHO_STORE_FP32).worst, 1.0) << "offset " << offset;
}

// ---- depth 10,000 -------------------------------------------------------------------------------

constexpr int kDepth = 10'000;
constexpr int kRanks = 3;
constexpr std::size_t kCount = 6 * kGroup;

float uniform(Random& random) { return static_cast<float>(random.next() >> 40) * 0x1p-23F - 1.0F; }

uint64_t seed_of(int rank, int call) { return static_cast<uint64_t>(call) * 64 + static_cast<uint64_t>(rank); }

std::vector<float> random_input(int rank, int call) {
  Random random(seed_of(rank, call));
  std::vector<float> v(kCount);
  for (float& x : v) x = uniform(random);
  return v;
}

// Spread over twelve orders of magnitude within a call and between calls.
std::vector<float> heavy_tailed_input(int rank, int call) {
  Random random(seed_of(rank, call) + 1);
  std::vector<float> v(kCount);
  for (float& x : v) x = uniform(random) * std::exp2(20.0F * uniform(random));
  return v;
}

// Made to err: values halfway between codes, all on the side that clips, of one sign for a thousand calls, with scales
// that leap so that a large residual meets a small call.
std::vector<float> adversarial_input(int rank, int call) {
  std::vector<float> rotated(kCount);
  const float sign = (call / 1000) % 2 == 0 ? 1.0F : -1.0F;
  const float factor = call % 17 == 0 ? 1000.0F : call % 5 == 0 ? 1e-3F : 1.0F;
  for (std::size_t i = 0; i < kCount; ++i) {
    rotated[i] = sign * factor * (i % kGroup == static_cast<std::size_t>(rank) ? -8.0F : 7.499F);
  }
  std::vector<float> v = rotated;  // the rotation is its own inverse: the codec sees `rotated`
  for (std::size_t group = 0; group < kCount / kGroup; ++group) {
    if (group % 2 == 0) core::rotate(core::GroupValues(&v[group * kGroup], kGroup));
  }
  return v;
}

// Sanitizers make each call several times slower; the bound does not depend on the depth.
int depth() { return kThreadSanitizer || kAddressSanitizer ? kDepth / 5 : kDepth; }

struct DeepCase {
  const char* name;
  std::vector<float> (*source)(int, int);
};

class DeepPass : public ::testing::TestWithParam<DeepCase> {};

INSTANTIATE_TEST_SUITE_P(Inputs, DeepPass,
                         ::testing::Values(DeepCase{"Random", random_input},
                                           DeepCase{"HeavyTailed", heavy_tailed_input},
                                           DeepCase{"Adversarial", adversarial_input}),
                         [](const auto& info) { return info.param.name; });

TEST_P(DeepPass, StaysWithinTheSameBound) {
  const Outcome outcome = run_pass(kRanks, kCount, depth(), GetParam().source, four_bits(depth(), 0), ECHO_STORE_FP32);
  std::cout << "worst error / bound over " << depth() << " calls: " << outcome.worst << "\n";
  EXPECT_LE(outcome.worst, 1.0);
  EXPECT_GT(outcome.worst, 0.0);
}

TEST_P(DeepPass, StaysWithinTheBoundWhenAlgorithmsAlternate) {
  const Outcome outcome = run_pass(kRanks, kCount, depth(), GetParam().source, alternating(0), ECHO_STORE_FP32);
  std::cout << "worst error / bound over " << depth() << " calls: " << outcome.worst << "\n";
  EXPECT_LE(outcome.worst, 1.0);
}

// Without feedback the same input leaves the bound: the tests above can fail.
TEST(DeepPass, WithoutFeedbackTheBoundIsBroken) {
  const Outcome outcome = run_pass(kRanks, kCount, 2000, adversarial_input, four_bits(2000, 0), kNoFeedback);
  EXPECT_GT(outcome.worst, 1.0);
}

}  // namespace
}  // namespace echo_comm::testing
