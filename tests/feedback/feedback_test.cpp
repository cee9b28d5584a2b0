#include "feedback/feedback.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "base/error.hpp"

namespace echo_comm::core {
namespace {

using ::testing::HasSubstr;

Partition whole(int64_t count, int64_t row_length, int size) {
  return Partition::chunks(GroupLayout(count, row_length), size);
}

std::string refusal(Feedback& feedback, const Partition& partition, bool rotation) {
  try {
    feedback.join_pass(partition, rotation);
  } catch (const Error& error) {
    return error.text();
  }
  return "accepted";
}

TEST(Feedback, FirstCallFixesThePass) {
  Feedback feedback(1000, 1, 3, Store::kFp32);
  feedback.join_pass(whole(1000, 100, 3), true);
  EXPECT_EQ(refusal(feedback, whole(1000, 100, 3), true), "accepted");
  EXPECT_THAT(refusal(feedback, whole(500, 100, 3), true),
              HasSubstr("began with 1000 elements, row length 100, rotation on; this call has 500 elements"));
  EXPECT_THAT(refusal(feedback, whole(1000, 0, 3), true), HasSubstr("row length 0"));
  EXPECT_THAT(refusal(feedback, whole(1000, 100, 3), false), HasSubstr("rotation off"));
}

float& sender_value(Feedback& feedback, int index) {
  return reinterpret_cast<float*>(feedback.residuals().sender.base)[index];
}
float& owner_value(Feedback& feedback, int index) {
  return reinterpret_cast<float*>(feedback.residuals().owner.base)[index];
}

// G7: nothing of one pass is seen by the next.
TEST(Feedback, ResetForgetsEverything) {
  Feedback feedback(1000, 0, 2, Store::kFp32);
  feedback.join_pass(whole(1000, 0, 2), true);
  sender_value(feedback, 5) = 3.0F;
  owner_value(feedback, 7) = -4.0F;
  EXPECT_EQ(feedback.sender_norm(), 3.0F);
  EXPECT_EQ(feedback.owner_norm(), 4.0F);
  feedback.reset();
  EXPECT_EQ(feedback.sender_norm(), 0.0F);
  feedback.join_pass(whole(640, 0, 2), false);
  EXPECT_EQ(sender_value(feedback, 5), 0.0F);
  EXPECT_EQ(owner_value(feedback, 7), 0.0F);
  EXPECT_EQ(feedback.owner_norm(), 0.0F);
}

// Without a wish of the caller: int8, and int16 with the same values from call 257 of a pass on.
TEST(Feedback, WidensInLongPasses) {
  const Partition layout = whole(200, 0, 2);
  Feedback feedback(200, 1, 2, std::nullopt);
  std::array<float, kGroup> e;
  for (int i = 0; i < kGroup; ++i) e[static_cast<std::size_t>(i)] = static_cast<float>(i - 30) * 0.37F;
  for (int pass = 0; pass < 2; ++pass) {
    for (int64_t call = 0; call < Feedback::kInt8Calls; ++call) {
      feedback.join_pass(layout, true);
      ASSERT_EQ(feedback.residuals().store, Store::kInt8);
    }
    store_residual(e, feedback.residuals().sender_of(2));
    store_residual(e, feedback.residuals().owner_of(3));
    std::array<float, kGroup> before;
    load_residual(feedback.residuals().sender_of(2), before);
    const float norm = feedback.owner_norm();
    feedback.join_pass(layout, true);
    ASSERT_EQ(feedback.residuals().store, Store::kInt16);
    std::array<float, kGroup> after;
    load_residual(feedback.residuals().sender_of(2), after);
    EXPECT_EQ(after, before);
    EXPECT_EQ(feedback.owner_norm(), norm);
    feedback.reset();
  }
}

// Exact calls before the first coded one lose nothing and cost nothing.
TEST(Feedback, AnExactCallHasResidualsOnlyAfterACodedOne) {
  Feedback feedback(200, 0, 2, Store::kInt8);
  for (int pass = 0; pass < 2; ++pass) {
    feedback.join_pass(whole(200, 0, 2), true);
    EXPECT_EQ(feedback.residuals_of_exact_call().sender.base, nullptr);
    EXPECT_EQ(feedback.residuals_of_exact_call().owner.base, nullptr);
    EXPECT_EQ(feedback.sender_norm(), 0.0F);
    feedback.join_pass(whole(200, 0, 2), true);
    EXPECT_NE(feedback.residuals().sender.base, nullptr);
    feedback.join_pass(whole(200, 0, 2), true);
    EXPECT_NE(feedback.residuals_of_exact_call().sender.base, nullptr);
    EXPECT_NE(feedback.residuals_of_exact_call().owner.base, nullptr);
    feedback.reset();
  }
}

TEST(Feedback, ALongPassThatBeginsWithExactCallsWidensToo) {
  Feedback feedback(64, 0, 2, std::nullopt);
  for (int64_t call = 0; call <= Feedback::kInt8Calls; ++call) {
    feedback.join_pass(whole(64, 0, 2), true);
    EXPECT_EQ(feedback.residuals_of_exact_call().sender.base, nullptr);
  }
  EXPECT_EQ(feedback.residuals().store, Store::kInt16);
}

std::string load_refusal(Feedback& feedback, const std::vector<std::byte>& state) {
  try {
    feedback.load(state);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kArgument);
    return error.text();
  }
  return "accepted";
}

// G1: saved in the middle of a pass and loaded elsewhere, it goes on with the same bits.
TEST(Feedback, GoesOnFromASavedPass) {
  for (const std::optional<Store> store :
       {std::optional<Store>(), std::optional(Store::kFp32), std::optional(Store::kInt16)}) {
    Feedback feedback(200, 1, 2, store);
    feedback.join_pass(whole(200, 0, 2), true);
    const Residuals residuals = feedback.residuals();
    std::array<float, kGroup> e;
    for (int i = 0; i < kGroup; ++i) e[static_cast<std::size_t>(i)] = static_cast<float>(i - 30) * 0.37F;
    store_residual(e, residuals.sender_of(2));
    store_residual(e, residuals.owner_of(3));
    const std::vector<std::byte> state = feedback.save();

    Feedback other(500, 1, 2, store);
    other.join_pass(whole(500, 0, 2), false);
    static_cast<void>(other.residuals());
    other.load(state);
    EXPECT_EQ(other.save(), state);
    EXPECT_EQ(other.sender_norm(), feedback.sender_norm());
    EXPECT_EQ(other.owner_norm(), feedback.owner_norm());
    EXPECT_GT(other.owner_norm(), 0.0F);
    EXPECT_THAT(refusal(other, whole(500, 0, 2), true), HasSubstr("began with 200 elements"));
    EXPECT_EQ(refusal(other, whole(200, 0, 2), true), "accepted");
    feedback.reset();
    other.load(feedback.save());
    EXPECT_EQ(refusal(other, whole(64, 0, 2), true), "accepted");  // no pass is under way
  }
}

TEST(Feedback, GoesOnFromASavedPassInPartsAndCountsItsCalls) {
  const std::vector<int64_t> counts = {100, 130};
  Feedback feedback(230, 0, 2, std::nullopt);
  for (int64_t call = 0; call < Feedback::kInt8Calls; ++call) feedback.join_pass(Partition::parts(counts, 0), true);
  static_cast<void>(feedback.residuals());
  Feedback other(230, 0, 2, std::nullopt);
  other.load(feedback.save());
  EXPECT_EQ(other.residuals().store, Store::kInt8);
  EXPECT_EQ(refusal(other, Partition::parts(counts, 0), true), "accepted");
  EXPECT_EQ(other.residuals().store, Store::kInt16);
  Feedback third(230, 0, 2, std::nullopt);
  third.load(other.save());
  EXPECT_EQ(third.residuals().store, Store::kInt16);
}

TEST(Feedback, RefusesSavedStatesThatDoNotFitAndStaysAsItWas) {
  Feedback feedback(200, 1, 2, Store::kFp32);
  feedback.join_pass(whole(200, 0, 2), true);
  sender_value(feedback, 5) = 3.0F;
  const std::vector<std::byte> state = feedback.save();
  Feedback other_rank(200, 0, 2, Store::kFp32);
  EXPECT_THAT(load_refusal(other_rank, state), HasSubstr("saved by rank 1 of 2, this is rank 0 of 2"));
  Feedback other_size(200, 1, 3, Store::kFp32);
  EXPECT_THAT(load_refusal(other_size, state), HasSubstr("saved by rank 1 of 2, this is rank 1 of 3"));
  Feedback small(199, 1, 2, Store::kFp32);
  EXPECT_THAT(load_refusal(small, state), HasSubstr("created for 199 elements, the saved state has 200"));
  Feedback other_store(200, 1, 2, Store::kInt8);
  EXPECT_THAT(load_refusal(other_store, state), HasSubstr("residuals of 4 bytes a value, this feedback keeps 1"));
  EXPECT_THAT(load_refusal(feedback, {}), HasSubstr("ends too early"));

  // Every length, and every byte of the header turned: an error or a state that can be used, never anything else.
  for (std::size_t length = 0; length < state.size(); ++length) {
    EXPECT_NE(load_refusal(feedback, {state.begin(), state.begin() + static_cast<std::ptrdiff_t>(length)}), "accepted");
  }
  std::vector<std::byte> longer = state;
  longer.push_back(std::byte{0});
  EXPECT_THAT(load_refusal(feedback, longer), HasSubstr("too many"));
  for (std::size_t at = 0; at < 64; ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::vector<std::byte> damaged = state;
      damaged[at] ^= std::byte{1} << bit;
      Feedback target(200, 1, 2, Store::kFp32);
      if (load_refusal(target, damaged) == "accepted") {
        EXPECT_GE(target.sender_norm(), 0.0F);
      }
    }
  }
  std::vector<std::byte> not_finite = state;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(&not_finite[64 + 5 * sizeof nan], &nan, sizeof nan);
  EXPECT_THAT(load_refusal(feedback, not_finite), HasSubstr("not finite"));
  EXPECT_EQ(feedback.save(), state);
}

TEST(Feedback, KeepsTheStoreThatWasAskedFor) {
  for (const Store store : {Store::kFp32, Store::kInt8, Store::kInt16}) {
    Feedback feedback(64, 0, 2, store);
    for (int64_t call = 0; call < 2 * Feedback::kInt8Calls; ++call) feedback.join_pass(whole(64, 0, 2), true);
    EXPECT_EQ(feedback.residuals().store, store);
  }
}

TEST(Feedback, RefusesMoreThanItWasCreatedFor) {
  Feedback feedback(1000, 0, 2, Store::kFp32);
  EXPECT_THAT(refusal(feedback, whole(1001, 0, 2), true), HasSubstr("created for 1000 elements, the call has 1001"));
  EXPECT_EQ(refusal(feedback, whole(1000, 10, 2), true), "accepted");  // rows of 10: padding grows the residuals
}

// G2: the account of memory.
TEST(Feedback, CountsItsMemory) {
  EXPECT_EQ(Feedback(64 * 300, 0, 3, Store::kFp32).bytes(), (64U * 300 + 64 * 100) * sizeof(float));
  EXPECT_EQ(Feedback(64 * 300, 0, 3, Store::kInt16).bytes(), 300U * 130 + 100 * 130);
  EXPECT_EQ(Feedback(64 * 300, 0, 3, Store::kInt8).bytes(), 300U * 66 + 100 * 66);
  EXPECT_EQ(Feedback(64 * 300, 0, 3, std::nullopt).bytes(), 300U * 66 + 100 * 66);
}

// Reduce-scatter: residuals for every part, none for sums, and no other partition within the pass.
TEST(Feedback, InPartsOwesAllGroupsOfAllPartsAndOwnsNothing) {
  Feedback feedback(300, 1, 3, Store::kFp32);
  const std::vector<int64_t> counts = {100, 0, 130};
  const Partition parts = Partition::parts(counts, 0);
  feedback.join_pass(parts, true);
  EXPECT_EQ(feedback.residuals().sender.groups, 2 + 0 + 3);
  EXPECT_EQ(feedback.residuals().owned, (GroupRange{0, 0}));
  EXPECT_THAT(
      refusal(feedback, whole(230, 0, 3), true),
      HasSubstr("began with 230 elements in parts, row length 0, rotation on; this call has 230 elements, row"));
  const std::vector<int64_t> other_counts = {130, 0, 100};
  EXPECT_THAT(refusal(feedback, Partition::parts(other_counts, 0), true), HasSubstr("reset the feedback"));
  EXPECT_EQ(refusal(feedback, parts, true), "accepted");
}

TEST(Feedback, OwnsItsChunk) {
  Feedback feedback(64 * 10, 2, 3, Store::kFp32);
  feedback.join_pass(whole(64 * 10, 0, 3), true);
  EXPECT_EQ(feedback.residuals().owned, (GroupRange{6, 10}));
}

}  // namespace
}  // namespace echo_comm::core
