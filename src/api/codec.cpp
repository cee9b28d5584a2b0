#include <algorithm>

#include "api/handles.hpp"
#include "codec/dispatch.hpp"

namespace echo_comm::core {
namespace {

Block read_block(const echo_range_t* given) {
  require(given != nullptr, ErrorCode::kArgument, "range is NULL");
  const echo_range_t range = read_struct(given, echo_range_t ECHO_RANGE_INITIALIZER, "range");
  constexpr int kBits = 4;
  const Block block{GroupLayout(read_count(range.count, "count"), read_count(range.row_length, "row_length")),
                    {range.group_begin, range.group_end},
                    read_format(range.bits, kBits, range.rotation),
                    read_dtype(range.dtype),
                    range.part_begin == 0 && range.part_end == 0
                        ? std::nullopt
                        : std::optional(GroupRange{range.part_begin, range.part_end})};
  require(range.group_begin >= 0 && range.group_begin <= range.group_end && range.group_end <= block.layout.groups(),
          ErrorCode::kArgument, "groups [", range.group_begin, ", ", range.group_end, ") of a tensor of ",
          block.layout.groups(), " groups");
  const GroupRange part = block.work();
  require(part.begin >= block.range.begin && part.begin <= part.end && part.end <= block.range.end,
          ErrorCode::kArgument, "part [", part.begin, ", ", part.end, ") of groups [", block.range.begin, ", ",
          block.range.end, ")");
  return block;
}

// The codec of a range that read_block has accepted.
const Codec& read_codec(const echo_range_t* given) {
  const echo_range_t range = read_struct(given, echo_range_t ECHO_RANGE_INITIALIZER, "range");
  return range.codec == nullptr ? active_codec() : existing_codec(range.codec, "codec ");
}

void check_aligned(const void* residual, Store store, const char* name) {
  const auto alignment = static_cast<uintptr_t>(std::max<int64_t>(value_bytes(store), kScaleBytes));
  require(reinterpret_cast<uintptr_t>(residual) % alignment == 0, ErrorCode::kArgument, "residual ", name, " is not ",
          alignment, "-byte aligned");
}

Residuals read_residuals(const echo_residuals_t* given, const Block& block) {
  if (given == nullptr) return {};
  const echo_residuals_t all = read_struct(given, echo_residuals_t ECHO_RESIDUALS_INITIALIZER, "residuals");
  const GroupRange owned{all.owner_begin, all.owner_end};
  const int64_t groups = block.layout.groups();
  require(all.owner == nullptr || (owned.begin >= 0 && owned.begin <= owned.end && owned.end <= groups),
          ErrorCode::kArgument, "owner residual of groups [", owned.begin, ", ", owned.end, ") of a tensor of ", groups,
          " groups");
  const Store store = read_store(all.store).value_or(Store::kFp32);
  check_aligned(all.sender, store, "sender");
  check_aligned(all.owner, store, "owner");
  return {
      store, {static_cast<std::byte*>(all.sender), groups}, {static_cast<std::byte*>(all.owner), owned.size()}, owned};
}

Payloads read_payloads(const void* const* encoded, int parts, int own, const Block& block) {
  require(parts >= 1 && parts <= kMaxRanks, ErrorCode::kArgument, "parts: ", parts, "; expected 1 to ", kMaxRanks);
  require(encoded != nullptr, ErrorCode::kArgument, "encoded is NULL");
  for (int part = 0; part < parts; ++part) {
    require(part == own || encoded[part] != nullptr || block.encoded_bytes() == 0, ErrorCode::kArgument, "encoded[",
            part, "] is NULL");
  }
  return {reinterpret_cast<const std::byte* const*>(encoded), static_cast<std::size_t>(parts)};
}

void check_tensor(const Block& block, const void* tensor, const char* name) {
  check_buffer(tensor, block.layout.elements(block.range), block.dtype, name);
}

void check_output(const Block& block, const void* output) {
  require(output != nullptr || block.encoded_bytes() == 0, ErrorCode::kArgument, "the output is NULL");
}

void count(uint64_t* poisoned, int64_t groups) {
  if (poisoned != nullptr) *poisoned += static_cast<uint64_t>(groups);
}

}  // namespace
}  // namespace echo_comm::core

const char* echo_codec_name(int index) {
  using namespace echo_comm::core;
  const char* name = nullptr;
  guarded([&] {
    const auto& codecs = available_codecs();
    if (index >= 0 && index < static_cast<int>(codecs.size())) name = codecs[static_cast<std::size_t>(index)]->name();
  });
  return name;
}

const char* echo_active_codec(void) {
  const char* name = "";
  echo_comm::core::guarded([&] { name = echo_comm::core::active_codec().name(); });
  return name;
}

int64_t echo_groups(size_t count, size_t row_length) {
  using namespace echo_comm::core;
  int64_t groups = -1;
  guarded([&] { groups = GroupLayout(read_count(count, "count"), read_count(row_length, "row_length")).groups(); });
  return groups;
}

echo_result_t echo_chunk(int64_t groups, int size, int rank, int64_t* group_begin, int64_t* group_end) {
  using namespace echo_comm::core;
  return guarded([&] {
    require(groups >= 0 && groups <= kMaxCount, ErrorCode::kArgument, "groups: ", groups);
    require(size >= 1 && size <= kMaxRanks && rank >= 0 && rank < size, ErrorCode::kArgument, "rank ", rank, " of ",
            size, "; expected 0 <= rank < size <= ", kMaxRanks);
    require(group_begin != nullptr && group_end != nullptr, ErrorCode::kArgument, "group_begin or group_end is NULL");
    const GroupRange chunk = chunk_of(groups, size, rank);
    *group_begin = chunk.begin;
    *group_end = chunk.end;
  });
}

echo_result_t echo_select(size_t count, size_t row_length, int bits, int size, int batch_invariant,
                          echo_algorithm_t* algorithm) {
  using namespace echo_comm::core;
  return guarded([&] {
    require(size >= 1 && size <= kMaxRanks, ErrorCode::kArgument, "size: ", size, "; expected 1 to ", kMaxRanks);
    require(algorithm != nullptr, ErrorCode::kArgument, "algorithm is NULL");
    constexpr int kBits = 4;
    const GroupLayout layout(read_count(count, "count"), read_count(row_length, "row_length"));
    const Format format = read_format(bits, kBits, ECHO_DEFAULT);
    // Bindings keep residuals on the exact path too: there that is two-shot.
    const Wish wish{.count = layout.count(), .format = format, .bits_given = true, .feedback = format.exact()};
    const Choice choice = select(wish, {.size = size, .batch_invariant = batch_invariant != 0}, Table());
    *algorithm = choice.kind == Kind::kOneShot ? ECHO_ONE_SHOT : ECHO_TWO_SHOT;
  });
}

int64_t echo_residual_bytes(int64_t groups, echo_store_t store) {
  using namespace echo_comm::core;
  int64_t bytes = -1;
  guarded([&] {
    require(groups >= 0 && groups <= kMaxCount, ErrorCode::kArgument, "groups: ", groups, "; expected 0 to ",
            kMaxCount);
    bytes = residual_bytes(groups, read_store(store).value_or(Store::kFp32));
  });
  return bytes;
}

echo_result_t echo_encoded_size(const echo_range_t* range, size_t* bytes) {
  using namespace echo_comm::core;
  return guarded([&] {
    require(bytes != nullptr, ErrorCode::kArgument, "bytes is NULL");
    *bytes = static_cast<size_t>(read_block(range).encoded_bytes());
  });
}

echo_result_t echo_encode(const echo_range_t* range, const void* in, const echo_residuals_t* residuals, void* encoded,
                          uint64_t* poisoned) {
  using namespace echo_comm::core;
  return guarded([&] {
    const Block block = read_block(range);
    check_tensor(block, in, "in");
    check_output(block, encoded);
    count(poisoned,
          read_codec(range).encode(block, in, read_residuals(residuals, block), static_cast<std::byte*>(encoded)));
  });
}

echo_result_t echo_reduce(const echo_range_t* range, const void* const* encoded, int size, int rank, const void* in,
                          const echo_residuals_t* residuals, int batch_invariant, int divisor, void* out_encoded,
                          uint64_t* poisoned) {
  using namespace echo_comm::core;
  return guarded([&] {
    const Block block = read_block(range);
    require(rank >= 0 && rank < size, ErrorCode::kArgument, "rank ", rank, " of ", size);
    require(divisor >= 1, ErrorCode::kArgument, "divisor: ", divisor, "; expected 1 or more");
    const Payloads payloads = read_payloads(encoded, size, rank, block);
    check_tensor(block, in, "in");
    check_output(block, out_encoded);
    const ReduceOptions options{rank, batch_invariant != 0, divisor};
    count(poisoned, read_codec(range).reduce(block, payloads, in, read_residuals(residuals, block), options,
                                             static_cast<std::byte*>(out_encoded)));
  });
}

echo_result_t echo_decode(const echo_range_t* range, const void* const* encoded, int parts, int divisor, int add,
                          const echo_residuals_t* residuals, void* out, uint64_t* poisoned) {
  using namespace echo_comm::core;
  return guarded([&] {
    const Block block = read_block(range);
    require(divisor >= 1, ErrorCode::kArgument, "divisor: ", divisor, "; expected 1 or more");
    require(add == 0 || add == 1, ErrorCode::kArgument, "add: ", add, " is not 0 or 1");
    constexpr int kNone = -1;
    const Payloads payloads = read_payloads(encoded, parts, kNone, block);
    check_tensor(block, out, "out");
    count(poisoned,
          read_codec(range).decode(block, payloads, read_residuals(residuals, block), {divisor, add == 1}, out));
  });
}
