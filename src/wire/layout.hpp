// Room wire: pure arithmetic about what travels. Groups, chunks, segments, formats, headers; no I/O, no state.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace echo_comm::core {

inline constexpr int kGroup = 64;  // values that share one scale (numerics.md section 2)

// Largest tensor: leaves room for every product of sizes below (64 ranks * groups, bytes of residuals) in 63 bits.
inline constexpr int64_t kMaxCount = int64_t{1} << 48;

// Groups [begin, end) of a tensor.
struct GroupRange {
  int64_t begin = 0;
  int64_t end = 0;

  [[nodiscard]] int64_t size() const { return end - begin; }
  [[nodiscard]] bool contains(int64_t group) const { return group >= begin && group < end; }
  friend bool operator==(const GroupRange&, const GroupRange&) = default;
};

// Where the values of one group lie in the tensor; values beyond `valid` are padding, 0 before the rotation.
struct GroupPlace {
  int64_t first = 0;
  int valid = 0;
};

// How the elements of a tensor fall into groups: groups start anew at each row.
class GroupLayout {
 public:
  // row_length 0: the tensor is one row. Throws when it does not divide count, or count is out of range.
  GroupLayout(int64_t count, int64_t row_length);

  [[nodiscard]] int64_t count() const { return count_; }
  // As given: 0 means one row.
  [[nodiscard]] int64_t row_length() const { return given_row_length_; }
  [[nodiscard]] int64_t groups() const { return groups_; }

  [[nodiscard]] GroupPlace place(int64_t group) const {
    if (dense_) return {group * kGroup, static_cast<int>(std::min<int64_t>(kGroup, count_ - group * kGroup))};
    const int64_t row = group / groups_per_row_;
    const int64_t offset = (group - row * groups_per_row_) * kGroup;
    return {row * row_length_ + offset, static_cast<int>(std::min<int64_t>(kGroup, row_length_ - offset))};
  }
  // First element of `group`; count() for group == groups(). Elements of consecutive groups are contiguous.
  [[nodiscard]] int64_t first_element(int64_t group) const { return group < groups_ ? place(group).first : count_; }
  [[nodiscard]] int64_t elements(GroupRange range) const {
    return first_element(range.end) - first_element(range.begin);
  }

  friend bool operator==(const GroupLayout&, const GroupLayout&) = default;

 private:
  int64_t count_;
  int64_t given_row_length_;
  int64_t row_length_;  // of the single row when none was given; at least 1
  int64_t groups_per_row_;
  int64_t groups_;
  bool dense_;  // groups follow each other without padding between: one row, or rows of whole groups
};

// Chunk of `rank`: whole groups, spread evenly, empty when there are fewer groups than ranks (numerics.md section 3).
GroupRange chunk_of(int64_t groups, int size, int rank);

// How a tensor falls to the ranks: chunks of whole groups of one tensor (all-reduce), or parts whose lengths the caller
// gave (reduce-scatter, all-gather). Groups start anew at each part, as if it were a tensor of its own.
class Partition {
 public:
  // What one rank owns: groups `range` of a tensor that begins at element `first_element` and at group `first_group` of
  // the whole.
  struct Piece {
    GroupLayout layout;
    GroupRange range;
    int64_t first_element;
    int64_t first_group;

    friend bool operator==(const Piece&, const Piece&) = default;
  };

  static Partition chunks(const GroupLayout& layout, int size);
  // One count per rank. Throws kArgument, naming the rank, when the row length does not divide its count.
  static Partition parts(std::span<const int64_t> counts, int64_t row_length);

  [[nodiscard]] const Piece& of(int rank) const { return pieces_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] int size() const { return static_cast<int>(pieces_.size()); }
  [[nodiscard]] bool in_parts() const { return in_parts_; }
  [[nodiscard]] int64_t count() const { return count_; }    // elements of the whole
  [[nodiscard]] int64_t groups() const { return groups_; }  // of the whole
  [[nodiscard]] int64_t row_length() const { return row_length_; }

  friend bool operator==(const Partition&, const Partition&) = default;

 private:
  Partition() = default;

  std::vector<Piece> pieces_;
  bool in_parts_ = false;
  int64_t count_ = 0;
  int64_t groups_ = 0;
  int64_t row_length_ = 0;
};

// Segment `index` of a chunk, `per_segment` groups each; an empty chunk still has one (empty) segment, so that every
// rank hears from every other in each call.
int64_t segment_count(GroupRange chunk, int64_t per_segment);
GroupRange segment_of(GroupRange chunk, int64_t per_segment, int64_t index);

}  // namespace echo_comm::core
