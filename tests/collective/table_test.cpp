// The text of the table of choices: what is read is what is printed, and what is wrong is said.
#include "collective/table.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.hpp"

namespace echo_comm::core {
namespace {

using ::testing::HasSubstr;

std::string refusal(std::string_view rows) {
  try {
    static_cast<void>(Table::parse(rows));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kArgument);
    return error.text();
  }
  return "accepted";
}

TEST(Table, ReadsRowsSeparatedByLinesOrSemicolons) {
  const Table table = Table::parse(
      "# a comment; with a semicolon\n"
      "all_reduce 4096 forward;all_reduce 64K exact one_shot\n\n"
      "  reduce_scatter\t1M coded segment=32K depth=3  # why\r\n"
      "all_gather * coded;");
  ASSERT_EQ(table.rows().size(), 4U);
  EXPECT_EQ(table.rows()[0], (TableRow{Collective::kAllReduce, 4096, Path::kForward}));
  EXPECT_EQ(table.rows()[1], (TableRow{Collective::kAllReduce, 64 << 10, Path::kExact, Algorithm::kOneShot}));
  EXPECT_EQ(table.rows()[2],
            (TableRow{Collective::kReduceScatter, 1 << 20, Path::kCoded, Algorithm::kAuto, 32 << 10, 3}));
  EXPECT_EQ(table.rows()[3], (TableRow{Collective::kAllGather, INT64_MAX, Path::kCoded}));
}

TEST(Table, PrintsWhatItReads) {
  const std::string rows =
      "all_reduce 4K forward\nall_reduce 65535 exact one_shot\nreduce_scatter 3G coded segment=32K depth=3\n"
      "all_gather * coded\n";
  EXPECT_EQ(Table::parse(rows).to_text(), rows);
  EXPECT_EQ(Table::parse("").to_text(), "");
}

TEST(Table, TheFirstRowThatCoversTheSizeCounts) {
  const Table table = Table::parse("all_reduce 100 exact; all_reduce 10 forward; all_gather * coded");
  EXPECT_EQ(table.find(Collective::kAllReduce, 5)->path, Path::kExact);
  EXPECT_EQ(table.find(Collective::kAllReduce, 100)->path, Path::kExact);
  EXPECT_EQ(table.find(Collective::kAllReduce, 101), nullptr);
  EXPECT_EQ(table.find(Collective::kReduceScatter, 5), nullptr);
}

TEST(Table, SaysWhatIsWrong) {
  EXPECT_THAT(refusal("reduce 4K exact"), HasSubstr("collective 'reduce' is not all_reduce"));
  EXPECT_THAT(refusal("all_reduce 4k exact"), HasSubstr("size '4k' is not a number of bytes"));
  EXPECT_THAT(refusal("all_reduce -1 exact"), HasSubstr("size '-1'"));
  EXPECT_THAT(refusal("all_reduce 99999999999G exact"), HasSubstr("size"));
  EXPECT_THAT(refusal("all_reduce"), HasSubstr("size ''"));
  EXPECT_THAT(refusal("all_reduce 4K"), HasSubstr("path '' is not forward, exact or coded"));
  EXPECT_THAT(refusal("all_reduce 4K q4"), HasSubstr("path 'q4'"));
  EXPECT_THAT(refusal("all_gather 4K coded one_shot"), HasSubstr("an algorithm is for all_reduce only"));
  EXPECT_THAT(refusal("all_reduce 4K coded depth=8"), HasSubstr("'depth=8' must be a number from 1 to 7"));
  EXPECT_THAT(refusal("all_reduce 4K coded segment=0"), HasSubstr("must be a number from 1"));
  EXPECT_THAT(refusal("all_reduce 4K coded three_shot"), HasSubstr("'three_shot' is not understood"));
  EXPECT_THAT(refusal("all_reduce 4K coded x"), HasSubstr("e.g. 'all_reduce 64K exact one_shot'"));
}

}  // namespace
}  // namespace echo_comm::core
