// The options of one input, and the comparison of what two codecs made of it.
#pragma once

#include <cstdio>
#include <optional>
#include <string>

#include "source.hpp"

namespace echo_comm::core {

// One tensor, its groups of interest, and the residuals of one rank.
struct Cell {
  GroupLayout layout{0, 0};
  Format format;
  Dtype dtype = Dtype::kFloat32;
  std::optional<Store> feedback;
  GroupRange range;
  std::optional<GroupRange> part;  // of the range; none: all of it
  GroupRange owned;                // groups of the owner residual

  [[nodiscard]] Block block() const { return {layout, range, format, dtype, part}; }
};

// The largest offset up to `offset` at which elements may lie.
inline std::size_t element_offset(std::size_t offset, Dtype dtype) {
  const std::size_t element = to_size(element_size(dtype));
  return offset / element * element;
}

inline Cell any_cell(Source& source) {
  static constexpr int kBits[] = {3, 4, 5, 6, 8, kExactBits};
  static constexpr Dtype kDtypes[] = {Dtype::kFloat32, Dtype::kBfloat16, Dtype::kFloat16};
  static constexpr std::optional<Store> kFeedbacks[] = {std::nullopt, Store::kFp32, Store::kInt8, Store::kInt16};
  Cell cell;
  const int64_t rows = source.flag() ? source.number(1, 6) : 1;
  const int64_t row_length = source.number(0, 700 / rows);
  cell.layout = GroupLayout(rows * row_length, rows == 1 ? 0 : row_length);
  cell.format = {source.one_of(kBits), source.flag()};
  cell.dtype = source.one_of(kDtypes);
  cell.feedback = source.one_of(kFeedbacks);
  const GroupRange all{0, cell.layout.groups()};
  cell.range = source.flag() ? all : source.range_in(all);
  if (source.flag()) cell.part = source.range_in(cell.range);
  cell.owned = source.range_in(all);
  return cell;
}

inline std::string describe(const Cell& cell) {
  const auto range = [](GroupRange r) { return "[" + std::to_string(r.begin) + ", " + std::to_string(r.end) + ")"; };
  return "count " + std::to_string(cell.layout.count()) + " row " + std::to_string(cell.layout.row_length()) + " " +
         format_name(cell.format) + " " + dtype_name(cell.dtype) + " store " +
         (cell.feedback ? std::to_string(static_cast<int>(*cell.feedback)) : "none") + " range " + range(cell.range) +
         " part " + (cell.part ? range(*cell.part) : "none") + " owned " + range(cell.owned);
}

// The residuals of one rank, in memory of exactly their size.
struct State {
  State(Source& source, const Cell& cell) : cell_(&cell) {
    if (!cell.feedback) return;
    sender = source.residual(cell.layout.groups(), *cell.feedback);
    owner = source.residual(cell.owned.size(), *cell.feedback);
  }

  Residuals residuals() {
    if (!cell_->feedback) return {};
    return {
        *cell_->feedback, {sender.data(), cell_->layout.groups()}, {owner.data(), cell_->owned.size()}, cell_->owned};
  }

  Bytes sender;
  Bytes owner;

 private:
  const Cell* cell_;
};

// Bytes at a place of any alignment, which end where their memory ends.
class Unaligned {
 public:
  Unaligned(const Bytes& content, std::size_t offset) : offset_(offset), memory_(offset) {
    memory_.insert(memory_.end(), content.begin(), content.end());
    memory_.shrink_to_fit();
  }
  std::byte* data() { return memory_.data() + offset_; }
  [[nodiscard]] Bytes content() const {
    return {memory_.begin() + static_cast<std::ptrdiff_t>(offset_), memory_.end()};
  }

 private:
  std::size_t offset_;
  Bytes memory_;
};

// What a codec left behind, in the order it did.
class Trace {
 public:
  explicit Trace(const Cell& cell) : fp32_residuals_(cell.feedback == Store::kFp32) {}

  void add(const char* what, Bytes bytes) { entries_.push_back({what, std::move(bytes), false}); }
  void add(const char* what, int64_t number) {
    Bytes bytes(sizeof number);
    std::memcpy(bytes.data(), &number, sizeof number);
    add(what, std::move(bytes));
  }
  void add(const State& state) {
    entries_.push_back({"sender residual", state.sender, fp32_residuals_});
    entries_.push_back({"owner residual", state.owner, fp32_residuals_});
  }

  // Stops the fuzzer if they differ.
  void expect(const Trace& expected, const Cell& cell, const Codec& codec) const {
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const std::size_t at = first_difference(entries_[i], expected.entries_[i]);
      if (at == kNone) continue;
      std::fprintf(stderr, "%s differs from the reference: entry %zu, %s, byte %zu of %zu: %02x, expected %02x\n%s\n",
                   codec.name(), i, entries_[i].what, at, entries_[i].bytes.size(),
                   std::to_integer<unsigned>(entries_[i].bytes[at]),
                   std::to_integer<unsigned>(expected.entries_[i].bytes[at]), describe(cell).c_str());
      __builtin_trap();
    }
  }

 private:
  static constexpr std::size_t kNone = ~std::size_t{0};

  struct Entry {
    const char* what;
    Bytes bytes;
    bool floats;  // a NaN that an exact call leaves until its decode may have any sign
  };

  static std::size_t first_difference(const Entry& a, const Entry& b) {
    for (std::size_t i = 0; i < a.bytes.size(); ++i) {
      if (a.bytes[i] == b.bytes[i]) continue;
      if (!a.floats || !is_nan_at(a.bytes, i) || !is_nan_at(b.bytes, i)) return i;
    }
    return kNone;
  }
  static bool is_nan_at(const Bytes& bytes, std::size_t at) {
    float x = 0;
    std::memcpy(&x, &bytes[at / sizeof x * sizeof x], sizeof x);
    return x != x;
  }

  bool fp32_residuals_;
  std::vector<Entry> entries_;
};

}  // namespace echo_comm::core
