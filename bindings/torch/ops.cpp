// PyTorch operators `echo::encode`, `echo::reduce`, `echo::decode`: the codec of the C interface for bindings that move
// the bytes themselves (numerics.md sections 2 and 3). Written on torch's stable ABI, so one binary serves every torch
// from 2.11 on; shape-only (fake) kernels live in python/echo_comm/torch/ops.py.
//
// State is an argument: residuals are mutable tensors (rotated domain, 64 values per group), never hidden, so
// that torch.compile may neither drop nor reorder a call. Everything about the arguments is checked before memory is
// touched.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "echo_comm/echo.h"

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;

void check(echo_result_t result) {
  STD_TORCH_CHECK(result == ECHO_SUCCESS, "echo (", echo_result_string(result), "): ", echo_last_error());
}

const char* dtype_name(ScalarType type) {
  switch (type) {
    case ScalarType::Float: return "float32";
    case ScalarType::Half: return "float16";
    case ScalarType::BFloat16: return "bfloat16";
    case ScalarType::Byte: return "uint8";
    case ScalarType::Char: return "int8";
    case ScalarType::Short: return "int16";
    case ScalarType::Double: return "float64";
    default: return "another type";
  }
}

void check_memory(const Tensor& tensor, const char* name) {
  STD_TORCH_CHECK(tensor.is_cpu(), "echo: ", name, " is not on the CPU; the codec works on host memory");
  STD_TORCH_CHECK(tensor.is_contiguous(), "echo: ", name, " is not contiguous; pass ", name, ".contiguous()");
}

void check_type(const Tensor& tensor, ScalarType expected, const char* name) {
  check_memory(tensor, name);
  STD_TORCH_CHECK(tensor.scalar_type() == expected, "echo: ", name, " is ", dtype_name(tensor.scalar_type()),
                  ", expected ", dtype_name(expected));
}

// A tensor and the groups of it that a call works on.
class Range {
 public:
  Range(const Tensor& tensor, const char* name, int64_t row_length, int64_t bits, bool rotation, int64_t group_begin,
        int64_t group_end) {
    check_memory(tensor, name);
    switch (tensor.scalar_type()) {
      case ScalarType::Float: range_.dtype = ECHO_FLOAT32; break;
      case ScalarType::Half: range_.dtype = ECHO_FLOAT16; break;
      case ScalarType::BFloat16: range_.dtype = ECHO_BFLOAT16; break;
      default:
        STD_TORCH_CHECK(false, "echo: ", name, " is ", dtype_name(tensor.scalar_type()),
                        ", expected float32, bfloat16 or float16");
    }
    STD_TORCH_CHECK(row_length >= 0, "echo: row_length is ", row_length, ", expected 0 (one row) or more");
    range_.count = static_cast<size_t>(tensor.numel());
    range_.row_length = static_cast<size_t>(row_length);
    range_.bits = static_cast<int>(bits);
    range_.rotation = rotation ? ECHO_ON : ECHO_OFF;
    range_.group_begin = group_begin;
    range_.group_end = group_end;
    groups_ = echo_groups(range_.count, range_.row_length);
    STD_TORCH_CHECK(groups_ >= 0, "echo: row_length ", row_length, " does not divide the ", tensor.numel(),
                    " elements of ", name);
    check(echo_encoded_size(&range_, &encoded_size_));
  }

  [[nodiscard]] const echo_range_t* get() const { return &range_; }
  [[nodiscard]] int64_t groups() const { return groups_; }
  [[nodiscard]] int64_t encoded_size() const { return static_cast<int64_t>(encoded_size_); }

 private:
  echo_range_t range_ = ECHO_RANGE_INITIALIZER;
  int64_t groups_ = 0;
  size_t encoded_size_ = 0;
};

// The type of a residual tensor says how it is kept: float32, or int8 and int16 with one bf16 scale a group behind the
// values (echo_residuals_t).
struct Kept {
  echo_store_t store;
  int64_t elements;  // of the tensor for one group
};

Kept kept_as(const Tensor& residual, const char* name) {
  check_memory(residual, name);
  switch (residual.scalar_type()) {
    case ScalarType::Float: return {ECHO_STORE_FP32, ECHO_GROUP};
    case ScalarType::Char: return {ECHO_STORE_INT8, ECHO_GROUP + 2};
    case ScalarType::Short: return {ECHO_STORE_INT16, ECHO_GROUP + 1};
    default:
      STD_TORCH_CHECK(false, "echo: ", name, " is ", dtype_name(residual.scalar_type()),
                      ", expected float32, int8 or int16");
  }
}

int64_t groups_of(const Tensor& residual, const Kept& kept, const char* name) {
  STD_TORCH_CHECK(residual.numel() % kept.elements == 0, "echo: ", name, " has ", residual.numel(),
                  " elements, no multiple of the ", kept.elements, " of a group");
  return residual.numel() / kept.elements;
}

echo_residuals_t residuals_of(const OptionalTensor& sender, const OptionalTensor& owner, int64_t owner_begin,
                              const Range& range) {
  echo_residuals_t residuals = ECHO_RESIDUALS_INITIALIZER;
  if (sender) {
    const Kept kept = kept_as(*sender, "sender");
    const int64_t groups = groups_of(*sender, kept, "sender");
    STD_TORCH_CHECK(groups == range.groups(), "echo: sender has ", sender->numel(), " values, the tensor's ",
                    range.groups(), " groups need ", range.groups() * kept.elements);
    residuals.store = kept.store;
    residuals.sender = sender->mutable_data_ptr();
  }
  if (owner) {
    const Kept kept = kept_as(*owner, "owner");
    STD_TORCH_CHECK(!sender || kept.store == residuals.store, "echo: sender is ", dtype_name(sender->scalar_type()),
                    ", owner ", dtype_name(owner->scalar_type()));
    const int64_t owned = groups_of(*owner, kept, "owner");
    STD_TORCH_CHECK(owner_begin >= 0 && owner_begin + owned <= range.groups(), "echo: owner has ", owner->numel(),
                    " values from group ", owner_begin, " on; the tensor has ", range.groups(), " groups of ",
                    ECHO_GROUP);
    residuals.store = kept.store;
    residuals.owner = owner->mutable_data_ptr();
    residuals.owner_begin = owner_begin;
    residuals.owner_end = owner_begin + owned;
  }
  return residuals;
}

// Runs `sweep` over parts of the range on torch's own threads (torch.set_num_threads); the bytes do not depend on how
// many. An exception must not leave one of those threads: the first error is kept and thrown here.
template <typename Sweep>
void in_parts(const Range& range, const Sweep& sweep) {
  constexpr int64_t kLeastGroups = 1024;  // less is done before a thread is awake
  const echo_range_t whole = *range.get();
  const int64_t groups = whole.group_end - whole.group_begin;
  if (groups < 2 * kLeastGroups) return check(sweep(whole));
  std::mutex mutex;
  echo_result_t result = ECHO_SUCCESS;
  std::string error;
  torch::stable::parallel_for(0, groups, kLeastGroups, [&](int64_t begin, int64_t end) {
    echo_range_t part = whole;
    part.part_begin = whole.group_begin + begin;
    part.part_end = whole.group_begin + end;
    const echo_result_t own = sweep(part);
    if (own == ECHO_SUCCESS) return;
    const std::lock_guard lock(mutex);
    result = own;
    error = echo_last_error();
  });
  STD_TORCH_CHECK(result == ECHO_SUCCESS, "echo (", echo_result_string(result), "): ", error);
}

// Addresses of what the ranks sent; the entry of `own` (-1: none) is not read and may be empty.
std::vector<const void*> parts_of(const std::vector<Tensor>& encoded, const Range& range, int64_t own) {
  std::vector<const void*> parts(encoded.size(), nullptr);
  for (size_t part = 0; part < encoded.size(); ++part) {
    if (static_cast<int64_t>(part) == own) continue;
    check_type(encoded[part], ScalarType::Byte, "encoded");
    STD_TORCH_CHECK(encoded[part].numel() == range.encoded_size(), "echo: encoded[", part, "] has ",
                    encoded[part].numel(), " bytes, groups [", range.get()->group_begin, ", ", range.get()->group_end,
                    ") take ", range.encoded_size());
    parts[part] = encoded[part].const_data_ptr();
  }
  return parts;
}

Tensor new_bytes(const Tensor& like, int64_t bytes) {
  return torch::stable::new_empty(like, {bytes}, ScalarType::Byte);
}

Tensor encode(const Tensor& x, const OptionalTensor& sender, const OptionalTensor& owner, int64_t owner_begin,
              int64_t row_length, int64_t bits, bool rotation, int64_t group_begin, int64_t group_end) {
  const Range range(x, "x", row_length, bits, rotation, group_begin, group_end);
  const echo_residuals_t residuals = residuals_of(sender, owner, owner_begin, range);
  Tensor encoded = new_bytes(x, range.encoded_size());
  const void* in = x.const_data_ptr();
  void* out = encoded.mutable_data_ptr();
  in_parts(range, [&](const echo_range_t& part) { return echo_encode(&part, in, &residuals, out, nullptr); });
  return encoded;
}

Tensor reduce(std::vector<Tensor> encoded, const Tensor& x, const OptionalTensor& sender, const OptionalTensor& owner,
              int64_t owner_begin, int64_t row_length, int64_t rank, int64_t bits, bool rotation, bool batch_invariant,
              int64_t divisor, int64_t group_begin, int64_t group_end) {
  const Range range(x, "x", row_length, bits, rotation, group_begin, group_end);
  const echo_residuals_t residuals = residuals_of(sender, owner, owner_begin, range);
  const int64_t size = static_cast<int64_t>(encoded.size());
  STD_TORCH_CHECK(rank >= 0 && rank < size, "echo: rank is ", rank, ", but encoded has ", size, " parts");
  const std::vector<const void*> parts = parts_of(encoded, range, rank);
  Tensor sum = new_bytes(x, range.encoded_size());
  const void* in = x.const_data_ptr();
  void* out = sum.mutable_data_ptr();
  in_parts(range, [&](const echo_range_t& part) {
    return echo_reduce(&part, parts.data(), static_cast<int>(size), static_cast<int>(rank), in, &residuals,
                       batch_invariant ? 1 : 0, static_cast<int>(divisor), out, nullptr);
  });
  return sum;
}

Tensor decode(const Tensor& out, std::vector<Tensor> encoded, const OptionalTensor& sender, const OptionalTensor& owner,
              int64_t owner_begin, int64_t row_length, int64_t divisor, bool add, int64_t bits, bool rotation,
              int64_t group_begin, int64_t group_end) {
  const Range range(out, "out", row_length, bits, rotation, group_begin, group_end);
  const echo_residuals_t residuals = residuals_of(sender, owner, owner_begin, range);
  const std::vector<const void*> parts = parts_of(encoded, range, -1);
  Tensor poisoned = torch::stable::new_zeros(out, {1}, ScalarType::Long);
  void* values = out.mutable_data_ptr();
  std::atomic<uint64_t> count{0};
  in_parts(range, [&](const echo_range_t& part) {
    uint64_t own = 0;
    const echo_result_t result = echo_decode(&part, parts.data(), static_cast<int>(parts.size()),
                                             static_cast<int>(divisor), add ? 1 : 0, &residuals, values, &own);
    count += own;
    return result;
  });
  *static_cast<uint64_t*>(poisoned.mutable_data_ptr()) = count;
  return poisoned;
}

}  // namespace

STABLE_TORCH_LIBRARY(echo, m) {
  m.def(
      "encode(Tensor x, Tensor(a!)? sender, Tensor(b!)? owner, int owner_begin, int row_length, int bits, "
      "bool rotation, int group_begin, int group_end) -> Tensor");
  m.def(
      "reduce(Tensor[] encoded, Tensor x, Tensor(a!)? sender, Tensor(b!)? owner, int owner_begin, int row_length, "
      "int rank, int bits, bool rotation, bool batch_invariant, int divisor, int group_begin, int group_end) -> "
      "Tensor");
  m.def(
      "decode(Tensor(a!) out, Tensor[] encoded, Tensor(b!)? sender, Tensor(c!)? owner, int owner_begin, "
      "int row_length, int divisor, bool add, int bits, bool rotation, int group_begin, int group_end) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(echo, CPU, m) {
  m.impl("encode", TORCH_BOX(&encode));
  m.impl("reduce", TORCH_BOX(&reduce));
  m.impl("decode", TORCH_BOX(&decode));
}
