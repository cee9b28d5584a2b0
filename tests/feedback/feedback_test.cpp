#include "feedback/feedback.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.hpp"

namespace echo_comm::core {
namespace {

using ::testing::HasSubstr;

std::string refusal(Feedback& feedback, const GroupLayout& layout, bool rotation) {
  try {
    feedback.join_pass(layout, rotation);
  } catch (const Error& error) {
    return error.text();
  }
  return "accepted";
}

TEST(Feedback, FirstCallFixesThePass) {
  Feedback feedback(1000, 1, 3);
  feedback.join_pass(GroupLayout(1000, 100), true);
  EXPECT_EQ(refusal(feedback, GroupLayout(1000, 100), true), "accepted");
  EXPECT_THAT(refusal(feedback, GroupLayout(500, 100), true),
              HasSubstr("began with 1000 elements, row length 100, rotation on; this call has 500 elements"));
  EXPECT_THAT(refusal(feedback, GroupLayout(1000, 0), true), HasSubstr("row length 0"));
  EXPECT_THAT(refusal(feedback, GroupLayout(1000, 100), false), HasSubstr("rotation off"));
}

// G7: nothing of one pass is seen by the next.
TEST(Feedback, ResetForgetsEverything) {
  Feedback feedback(1000, 0, 2);
  feedback.join_pass(GroupLayout(1000, 0), true);
  feedback.sender()[5] = 3.0F;
  feedback.owner()[7] = -4.0F;
  EXPECT_EQ(feedback.sender_norm(), 3.0F);
  EXPECT_EQ(feedback.owner_norm(), 4.0F);
  feedback.reset();
  EXPECT_EQ(feedback.sender_norm(), 0.0F);
  feedback.join_pass(GroupLayout(640, 0), false);
  EXPECT_EQ(feedback.sender()[5], 0.0F);
  EXPECT_EQ(feedback.owner()[7], 0.0F);
  EXPECT_EQ(feedback.owner_norm(), 0.0F);
}

TEST(Feedback, RefusesMoreThanItWasCreatedFor) {
  Feedback feedback(1000, 0, 2);
  EXPECT_THAT(refusal(feedback, GroupLayout(1001, 0), true), HasSubstr("created for 1000 elements, the call has 1001"));
  EXPECT_EQ(refusal(feedback, GroupLayout(1000, 10), true), "accepted");  // rows of 10: padding grows the residuals
}

// G2: the account of memory.
TEST(Feedback, CountsItsMemory) {
  const Feedback feedback(64 * 300, 0, 3);
  EXPECT_EQ(feedback.bytes(), (64U * 300 + 64 * 100) * sizeof(float));
}

TEST(Feedback, OwnsItsChunk) {
  Feedback feedback(64 * 10, 2, 3);
  feedback.join_pass(GroupLayout(64 * 10, 0), true);
  EXPECT_EQ(feedback.owned(), (GroupRange{6, 10}));
}

}  // namespace
}  // namespace echo_comm::core
