#include "wire/header.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <vector>

#include "base/error.hpp"

namespace echo_comm::core {
namespace {

using ::testing::HasSubstr;

MessageHeader example() {
  MessageHeader header;
  header.kind = Kind::kTwoShot;
  header.dtype = Dtype::kBfloat16;
  header.sequence = 17;
  header.count = 4096;
  header.flags = MessageHeader::kRotation | MessageHeader::kFeedback;
  header.shot = 1;
  header.rank = 2;
  return header;
}

std::vector<std::byte> message(const MessageHeader& header, std::size_t payload) {
  std::vector<std::byte> bytes(sizeof header + payload);
  write_header(bytes, header);
  return bytes;
}

std::string refusal(const MessageHeader& sent, const MessageHeader& expected) {
  try {
    check_header(message(sent, 10), expected, 0, 10);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMismatch);
    return error.text();
  }
  return "accepted";
}

// The bytes of FORMAT.md, written out once.
TEST(MessageHeader, HasTheDocumentedBytes) {
  const std::vector<std::byte> bytes = message(example(), 0);
  const std::array<int, 32> expected = {'E', 'C', 'H', 'O', 1, 2, 9, 4, 17, 0, 0, 0, 0, 0, 0, 0,
                                        0,   16,  0,   0,   0, 0, 0, 0, 0,  0, 0, 0, 3, 1, 2, 0};
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(std::to_integer<int>(bytes[i]), expected[i]) << i;
}

TEST(MessageHeader, AcceptsWhatItExpects) { EXPECT_EQ(refusal(example(), example()), "accepted"); }

// D1: the text names both values, both ranks, and what to do.
TEST(MessageHeader, NamesBothSidesOfAMismatch) {
  MessageHeader sent = example();
  sent.count = 8192;
  const std::string text = refusal(sent, example());
  EXPECT_THAT(text, HasSubstr("rank 2 sent 8192 elements of bf16"));
  EXPECT_THAT(text, HasSubstr("rank 0 expects 4096 elements of bf16"));
  EXPECT_THAT(text, HasSubstr("call 17"));
  EXPECT_THAT(text, HasSubstr("all ranks must pass the same count"));
}

TEST(MessageHeader, RefusesEveryFieldThatDiffers) {
  const std::vector<std::pair<const char*, std::function<void(MessageHeader&)>>> changes = {
      {"the same version of Echo", [](MessageHeader& h) { h.magic = 1; }},
      {"the same version of Echo", [](MessageHeader& h) { h.version = 9; }},
      {"one-shot", [](MessageHeader& h) { h.kind = Kind::kOneShot; }},
      {"the same type", [](MessageHeader& h) { h.dtype = Dtype::kFloat32; }},
      {"q8", [](MessageHeader& h) { h.bits = 8; }},
      {"in the same order", [](MessageHeader& h) { h.sequence = 18; }},
      {"the same row length", [](MessageHeader& h) { h.row_length = 64; }},
      {"without rotation", [](MessageHeader& h) { h.flags ^= MessageHeader::kRotation; }},
      {"feedback off", [](MessageHeader& h) { h.flags ^= MessageHeader::kFeedback; }},
      {"AVG", [](MessageHeader& h) { h.flags ^= MessageHeader::kAverage; }},
      {"batch invariant", [](MessageHeader& h) { h.flags ^= MessageHeader::kBatchInvariant; }},
      {"flush", [](MessageHeader& h) { h.flags ^= MessageHeader::kFlush; }},
      {"a bug in Echo", [](MessageHeader& h) { h.shot = 2; }},
  };
  for (const auto& [words, change] : changes) {
    MessageHeader sent = example();
    change(sent);
    EXPECT_THAT(refusal(sent, example()), HasSubstr(words));
  }
}

// I7: sizes are checked before the payload is touched.
TEST(MessageHeader, RefusesWrongSizes) {
  const std::vector<std::byte> sent = message(example(), 10);
  EXPECT_THROW(check_header(sent, example(), 0, 11), Error);
  EXPECT_THROW(check_header(sent, example(), 0, 9), Error);
  EXPECT_THROW(check_header(std::span(sent).first(31), example(), 0, 0), Error);
  EXPECT_THROW(check_header(std::span(sent).first(0), example(), 0, 0), Error);
}

}  // namespace
}  // namespace echo_comm::core
