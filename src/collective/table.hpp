// The table of choices: (collective, bytes) -> path, algorithm, segment size, depth. Data that every rank holds alike.
//
// As text, in ECHO_TABLE, in a file or as echo_comm_table() prints it, one row a line (or separated by ';'):
//
//   COLLECTIVE UPTO PATH [ALGORITHM] [segment=VALUES] [depth=N]      # comment
//
//   COLLECTIVE   all_reduce, reduce_scatter or all_gather
//   UPTO         largest tensor the row is for, in bytes at 2 bytes an element whatever its type; 4096, 64K, 1M, 2G, *
//   PATH         forward (do not use Echo: for callers that have another engine), exact, coded
//   ALGORITHM    one_shot or two_shot (all_reduce only); left out: by number of ranks
//   VALUES       values of one segment, the unit of pipelining; left out: built in
//   depth        segments sent ahead, 1 to kSlots - 1; left out: by transport
//
// The first row of a collective that covers the tensor counts; without one, the built-in rules do.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "wire/header.hpp"

namespace echo_comm::core {

enum class Collective : uint8_t { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kBarrier };
[[nodiscard]] const char* collective_name(Collective collective);

enum class Path : uint8_t { kForward = 1, kExact = 2, kCoded = 3 };
[[nodiscard]] const char* path_name(Path path);

enum class Algorithm : uint8_t { kAuto = 0, kOneShot = 1, kTwoShot = 2 };

struct TableRow {
  Collective collective = Collective::kAllReduce;
  int64_t max_bytes = INT64_MAX;
  Path path = Path::kCoded;
  Algorithm algorithm = Algorithm::kAuto;
  int64_t segment_values = 0;  // 0: built in
  int depth = 0;               // 0: by transport

  friend bool operator==(const TableRow&, const TableRow&) = default;
};

class Table {
 public:
  Table() = default;
  explicit Table(std::vector<TableRow> rows) : rows_(std::move(rows)) {}

  // Throws kArgument with the row that is wrong and what is expected.
  static Table parse(std::string_view rows_text);
  [[nodiscard]] std::string to_text() const;

  [[nodiscard]] const TableRow* find(Collective collective, int64_t bytes) const;
  [[nodiscard]] const std::vector<TableRow>& rows() const { return rows_; }
  friend bool operator==(const Table&, const Table&) = default;

 private:
  std::vector<TableRow> rows_;
};

// "4096", "64K", "1M", "2G"; what has no such form is printed in full.
[[nodiscard]] std::string bytes_text(int64_t bytes);

}  // namespace echo_comm::core
