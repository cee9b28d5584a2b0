// What a codec call reads and writes, as arrays of groups, so that a run of groups can be taken out, done once more by
// the reference codec, and compared.
#pragma once

#include <cstdint>
#include <vector>

#include "echo_perf/buffer.hpp"
#include "echo_perf/codec_case.hpp"

namespace echo_comm::tools {

// Memory made of planes, one after the other; each holds the same number of bytes for every group. A payload: codes,
// then scales. A residual: values, then scales. A tensor: values.
class GroupArray {
 public:
  GroupArray(std::int64_t groups, std::vector<std::int64_t> planes);  // bytes of a group in each plane; zeros

  [[nodiscard]] std::byte* data() const { return memory_.data(); }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  [[nodiscard]] GroupArray slice(GroupSpan span) const;
  // Bytes of `slice`, which was taken from group `begin` on, that are not those of this array.
  [[nodiscard]] std::uint64_t different(const GroupArray& slice, std::int64_t begin) const;

 private:
  // Calls body(own bytes, slice's bytes, count) for each plane.
  template <class Body>
  void for_each_plane(const GroupArray& slice, std::int64_t begin, Body&& body) const;

  std::int64_t groups_;
  std::vector<std::int64_t> planes_;
  std::int64_t bytes_;
  Buffer memory_;
};

// The operands of one case, filled: normal values, residuals that owe something, payloads of those values.
class Operands {
 public:
  explicit Operands(const CodecCase& what);

  [[nodiscard]] std::int64_t groups() const { return groups_; }
  [[nodiscard]] std::byte* tensor() const { return tensor_.data(); }

  // The call that is measured, on some of the groups. Throws Exception.
  void run(const char* codec, GroupSpan part);

  // Copies of everything for groups [begin, end), as a tensor of its own.
  [[nodiscard]] Operands slice(GroupSpan span) const;
  // Bytes of a slice from group `begin` on that are not those of these operands.
  [[nodiscard]] std::uint64_t different(const Operands& slice, std::int64_t begin) const;

 private:
  Operands(const CodecCase& what, std::int64_t values, GroupArray tensor, GroupArray payload);
  void fill(int rank);
  void encode(const GroupArray& payload, bool with_residual);
  [[nodiscard]] echo_residuals_t residuals() const;

  CodecCase what_;
  std::int64_t values_;
  std::int64_t groups_;
  GroupArray tensor_;                  // whole groups; elements past the end are not used
  GroupArray payload_;                 // decode reads it, the others write it
  std::vector<GroupArray> residuals_;  // of the sender, of the owner
  std::vector<GroupArray> inputs_;     // reduce: what the others sent; this is rank 0
};

}  // namespace echo_comm::tools
