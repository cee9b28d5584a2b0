#include "collective/table.hpp"

#include <algorithm>
#include <charconv>

#include "base/error.hpp"
#include "transport/transport.hpp"

namespace echo_comm::core {
namespace {

constexpr std::string_view kBlank = " \t\r";
constexpr int64_t kMostSegmentValues = int64_t{1} << 40;

[[noreturn]] void reject(std::string_view row, const std::string& why) {
  fail(ErrorCode::kArgument, "table: row '", row, "': ", why,
       "; expected COLLECTIVE UPTO PATH [ALGORITHM] [segment=VALUES] [depth=N], e.g. 'all_reduce 64K exact one_shot'");
}

// The next word of `rest`, which loses it; empty at the end.
std::string_view next_word(std::string_view& rest) {
  rest.remove_prefix(std::min(rest.size(), rest.find_first_not_of(kBlank)));
  const std::string_view word = rest.substr(0, rest.find_first_of(kBlank));
  rest.remove_prefix(word.size());
  return word;
}

// A whole number with K, M or G behind it; nothing if it is none.
std::optional<int64_t> parse_size(std::string_view word) {
  int64_t number = 0;
  const char* end = word.data() + word.size();
  const auto parsed = std::from_chars(word.data(), end, number);
  if (parsed.ec != std::errc() || number < 0) return std::nullopt;
  const std::string_view unit(parsed.ptr, static_cast<std::size_t>(end - parsed.ptr));
  const int shift = unit.empty() ? 0 : unit == "K" ? 10 : unit == "M" ? 20 : unit == "G" ? 30 : -1;
  if (shift < 0 || number > (INT64_MAX >> shift)) return std::nullopt;
  return number << shift;
}

Collective parse_collective(std::string_view row, std::string_view word) {
  for (const Collective one : {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather}) {
    if (word == collective_name(one)) return one;
  }
  reject(row, text("collective '", word, "' is not all_reduce, reduce_scatter or all_gather"));
}

Path parse_path(std::string_view row, std::string_view word) {
  for (const Path one : {Path::kForward, Path::kExact, Path::kCoded}) {
    if (word == path_name(one)) return one;
  }
  reject(row, text("path '", word, "' is not forward, exact or coded"));
}

int64_t parse_option(std::string_view row, std::string_view word, std::string_view value, int64_t most) {
  const std::optional<int64_t> number = parse_size(value);
  if (!number || *number < 1 || *number > most) reject(row, text("'", word, "' must be a number from 1 to ", most));
  return *number;
}

void read_option(std::string_view row, std::string_view word, TableRow& result) {
  constexpr std::string_view kSegment = "segment=";
  constexpr std::string_view kDepth = "depth=";
  if (word == "one_shot" || word == "two_shot") {
    if (result.collective != Collective::kAllReduce) reject(row, "an algorithm is for all_reduce only");
    result.algorithm = word == "one_shot" ? Algorithm::kOneShot : Algorithm::kTwoShot;
  } else if (word.starts_with(kSegment)) {
    result.segment_values = parse_option(row, word, word.substr(kSegment.size()), kMostSegmentValues);
  } else if (word.starts_with(kDepth)) {
    result.depth = static_cast<int>(parse_option(row, word, word.substr(kDepth.size()), kSlots - 1));
  } else {
    reject(row, text("'", word, "' is not understood"));
  }
}

std::optional<TableRow> parse_row(std::string_view row) {
  std::string_view rest = row.substr(0, row.find('#'));
  const std::string_view collective = next_word(rest);
  if (collective.empty()) return std::nullopt;
  TableRow result;
  result.collective = parse_collective(row, collective);
  const std::string_view up_to = next_word(rest);
  if (up_to != "*") {
    const std::optional<int64_t> bytes = parse_size(up_to);
    if (!bytes) reject(row, text("size '", up_to, "' is not a number of bytes (4096, 64K, 1M, 2G) or *"));
    result.max_bytes = *bytes;
  }
  result.path = parse_path(row, next_word(rest));
  for (std::string_view word = next_word(rest); !word.empty(); word = next_word(rest)) read_option(row, word, result);
  return result;
}

}  // namespace

const char* collective_name(Collective collective) {
  switch (collective) {
    case Collective::kAllReduce: return "all_reduce";
    case Collective::kReduceScatter: return "reduce_scatter";
    case Collective::kAllGather: return "all_gather";
    case Collective::kBroadcast: return "broadcast";
    case Collective::kBarrier: return "barrier";
  }
  return "unknown";
}

const char* path_name(Path path) {
  switch (path) {
    case Path::kForward: return "forward";
    case Path::kExact: return "exact";
    case Path::kCoded: return "coded";
  }
  return "unknown";
}

std::string bytes_text(int64_t bytes) {
  for (const auto& [shift, unit] : {std::pair{30, "G"}, std::pair{20, "M"}, std::pair{10, "K"}}) {
    const int64_t one = int64_t{1} << shift;
    if (bytes >= one && bytes % one == 0) return text(bytes >> shift, unit);
  }
  return text(bytes);
}

Table Table::parse(std::string_view rows_text) {
  std::vector<TableRow> rows;
  while (!rows_text.empty()) {
    // A comment goes on to the end of its line, over any ';'.
    const std::string_view line = rows_text.substr(0, rows_text.find('\n'));
    const std::size_t comment = std::min(line.find('#'), line.size());
    const std::string_view row = line.substr(0, std::min(line.find(';'), comment));
    if (const auto parsed = parse_row(row)) rows.push_back(*parsed);
    const std::size_t used = row.size() == comment ? line.size() : row.size();
    rows_text.remove_prefix(std::min(rows_text.size(), used + 1));
  }
  return Table(std::move(rows));
}

std::string Table::to_text() const {
  std::string lines;
  for (const TableRow& row : rows_) {
    lines += text(collective_name(row.collective), " ", row.max_bytes == INT64_MAX ? "*" : bytes_text(row.max_bytes),
                  " ", path_name(row.path));
    if (row.algorithm != Algorithm::kAuto) lines += row.algorithm == Algorithm::kOneShot ? " one_shot" : " two_shot";
    if (row.segment_values != 0) lines += text(" segment=", bytes_text(row.segment_values));
    if (row.depth != 0) lines += text(" depth=", row.depth);
    lines += "\n";
  }
  return lines;
}

const TableRow* Table::find(Collective collective, int64_t bytes) const {
  const auto found = std::ranges::find_if(
      rows_, [&](const TableRow& row) { return row.collective == collective && bytes <= row.max_bytes; });
  return found == rows_.end() ? nullptr : &*found;
}

}  // namespace echo_comm::core
