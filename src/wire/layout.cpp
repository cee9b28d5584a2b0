#include "wire/layout.hpp"

#include "base/checked.hpp"

namespace echo_comm::core {

GroupLayout::GroupLayout(int64_t count, int64_t row_length)
    : count_(count), given_row_length_(row_length), row_length_(1), groups_per_row_(1), groups_(0), dense_(true) {
  require(count >= 0 && count <= kMaxCount, ErrorCode::kArgument, "count: ", count, " elements; expected 0 to ",
          kMaxCount);
  require(row_length >= 0, ErrorCode::kArgument, "row length: ", row_length, "; expected 0 (one row) or more");
  require(row_length == 0 || count % row_length == 0, ErrorCode::kArgument, "row length ", row_length,
          " does not divide the count of ", count, " elements");
  row_length_ = std::max<int64_t>(1, row_length > 0 ? row_length : count);
  groups_per_row_ = ceil_div(row_length_, kGroup);
  groups_ = count / row_length_ * groups_per_row_;
  dense_ = row_length_ == count || row_length_ % kGroup == 0 || count == 0;
}

GroupRange chunk_of(int64_t groups, int size, int rank) {
  // groups <= kMaxCount and size <= 64: the products fit.
  return {groups * rank / size, groups * (rank + 1) / size};
}

Partition Partition::chunks(const GroupLayout& layout, int size) {
  Partition partition;
  for (int rank = 0; rank < size; ++rank) {
    partition.pieces_.push_back({layout, chunk_of(layout.groups(), size, rank), 0, 0});
  }
  partition.count_ = layout.count();
  partition.groups_ = layout.groups();
  partition.row_length_ = layout.row_length();
  return partition;
}

Partition Partition::parts(std::span<const int64_t> counts, int64_t row_length) {
  Partition partition;
  partition.in_parts_ = true;
  partition.row_length_ = row_length;
  for (const int64_t count : counts) {
    require(row_length <= 0 || count % row_length == 0, ErrorCode::kArgument, "row length ", row_length,
            " does not divide the ", count, " elements of rank ", partition.size());
    const GroupLayout layout(count, row_length);
    partition.pieces_.push_back({layout, {0, layout.groups()}, partition.count_, partition.groups_});
    partition.count_ = checked_add(partition.count_, count, "count");
    partition.groups_ += layout.groups();
  }
  require(partition.count_ <= kMaxCount, ErrorCode::kArgument, "count: ", partition.count_,
          " elements in all; expected 0 to ", kMaxCount);
  return partition;
}

int64_t segment_count(GroupRange chunk, int64_t per_segment) {
  return std::max<int64_t>(1, ceil_div(chunk.size(), per_segment));
}

GroupRange segment_of(GroupRange chunk, int64_t per_segment, int64_t index) {
  const int64_t begin = std::min(chunk.end, chunk.begin + index * per_segment);
  return {begin, std::min(chunk.end, begin + per_segment)};
}

}  // namespace echo_comm::core
