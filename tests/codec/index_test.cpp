// Tensors of more than 2^32 elements, without their memory: offsets of groups, codes, scales and residuals; and sweeps
// over the last groups of such a tensor in address space that is reserved, not used (B7).
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "support.hpp"

namespace echo_comm::core {
namespace {

constexpr int64_t kHuge = int64_t{1} << 40;

TEST(HugeTensors, HaveTheirGroupsWhereTheyBelong) {
  const GroupLayout dense(kHuge + 5, 0);
  EXPECT_EQ(dense.groups(), kHuge / 64 + 1);
  EXPECT_EQ(dense.place(kHuge / 64 - 1).first, kHuge - 64);
  EXPECT_EQ(dense.place(kHuge / 64).first, kHuge);
  EXPECT_EQ(dense.place(kHuge / 64).valid, 5);

  const int64_t rows = kHuge / 128;
  const GroupLayout padded(rows * 100, 100);
  EXPECT_EQ(padded.groups(), rows * 2);
  EXPECT_EQ(padded.place(rows * 2 - 1).first, rows * 100 - 36);
  EXPECT_EQ(padded.place(rows * 2 - 1).valid, 36);
  EXPECT_EQ(padded.elements({rows, rows * 2}), rows * 50);

  const GroupLayout long_rows(4 * (kHuge + 1), kHuge + 1);
  EXPECT_EQ(long_rows.groups(), 4 * (kHuge / 64 + 1));
  EXPECT_EQ(long_rows.place(long_rows.groups() - 1).first, 4 * (kHuge + 1) - 1);
}

TEST(HugeTensors, HaveSizesIn64Bits) {
  const GroupLayout layout(kHuge, 0);
  const GroupRange all{0, layout.groups()};
  for (const int bits : kCodedBits) {
    EXPECT_EQ(encoded_size(layout, all, {bits, true}, Dtype::kBfloat16), kHuge / 64 * (8 * bits + 2));
  }
  EXPECT_EQ(encoded_size(layout, all, {kExactBits, true}, Dtype::kFloat32), kHuge * 4);
  EXPECT_EQ(residual_bytes(all.size(), Store::kFp32), kHuge * 4);
  EXPECT_EQ(residual_bytes(all.size(), Store::kInt8), kHuge + kHuge / 32);
  EXPECT_EQ(residual_bytes(all.size(), Store::kInt16), 2 * kHuge + kHuge / 32);
  EXPECT_EQ(groups_that_fit(kHuge * 34, {4, true}, Dtype::kBfloat16), kHuge);
}

TEST(HugeTensors, AreDividedWithoutOverflow) {
  for (const int64_t groups : {kHuge, kMaxCount}) {
    for (const int size : {1, 3, 64}) {
      int64_t end = 0;
      for (int rank = 0; rank < size; ++rank) {
        const GroupRange chunk = chunk_of(groups, size, rank);
        ASSERT_EQ(chunk.begin, end);
        ASSERT_LE(std::abs(chunk.size() - groups / size), 1);
        end = chunk.end;
      }
      ASSERT_EQ(end, groups);
    }
  }
  const GroupRange chunk{kHuge, kHuge + 1000};
  const GroupRange last{kHuge + 960, kHuge + 1000};
  EXPECT_EQ(segment_of(chunk, 64, segment_count(chunk, 64) - 1), last);
}

// ---- sweeps --------------------------------------------------------------------------------------------------------

// Zeros of any size; only pages that are touched take memory.
class Reserved {
 public:
  explicit Reserved(int64_t bytes) : bytes_(to_size(bytes)) {
    void* all = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all != MAP_FAILED) data_ = static_cast<std::byte*>(all);
  }
  ~Reserved() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;

  [[nodiscard]] std::byte* data() const { return data_; }  // null: the system refused

 private:
  std::size_t bytes_;
  std::byte* data_ = nullptr;
};

// The buffers of one rank for a tensor, of which only the groups `part` at the end are used.
class FarTensor {
 public:
  // `last` is as many groups as the small tensor with the same content has.
  FarTensor(const Cell& cell, int64_t last)
      : cell_(cell),
        block_(cell.block()),
        first_(block_.layout.first_element(block_.range.end - last)),
        in_(bytes_of_elements()),
        out_(bytes_of_elements()),
        payload_(block_.encoded_bytes()),
        sum_(block_.encoded_bytes()),
        sender_(residual_bytes(block_.range.size(), *cell.feedback)),
        owner_(residual_bytes(block_.range.size(), *cell.feedback)) {
    block_.part = GroupRange{block_.range.end - last, block_.range.end};
  }

  [[nodiscard]] bool is_mapped() const {
    return in_.data() && out_.data() && payload_.data() && sum_.data() && sender_.data() && owner_.data();
  }

  // Encode, reduce with the own payload as that of another rank, decode; what they left in the last groups.
  std::vector<Bytes> sweep(const Codec& codec, const Bytes& in) {
    std::ranges::copy(in, in_.data() + first_ * element_size(cell_.dtype));
    const Residuals residuals{
        *cell_.feedback, {sender_.data(), block_.range.size()}, {owner_.data(), block_.range.size()}, block_.range};
    const std::byte* others[] = {payload_.data(), nullptr};
    const std::byte* sums[] = {sum_.data()};
    codec.encode(block_, in_.data(), residuals, payload_.data());
    codec.reduce(block_, others, in_.data(), residuals, {1, true, 1}, sum_.data());
    codec.decode(block_, sums, residuals, {1, true}, out_.data());
    const std::byte* out = out_.data() + first_ * element_size(cell_.dtype);
    std::vector<Bytes> left{{out, out + in.size()}};
    for (const Reserved* payload : {&payload_, &sum_}) add_payload(payload->data(), left);
    for (const Reserved* residual : {&sender_, &owner_}) add_residual(residual->data(), left);
    return left;
  }

 private:
  [[nodiscard]] int64_t bytes_of_elements() const { return cell_.count * element_size(cell_.dtype); }

  void add_payload(const std::byte* payload, std::vector<Bytes>& left) const {
    const GroupRange part = block_.work();
    if (cell_.format.exact()) {
      left.emplace_back(payload + first_ * element_size(cell_.dtype), payload + bytes_of_elements());
      return;
    }
    const int64_t bytes = code_bytes(cell_.format.bits);
    const std::byte* scales = payload + block_.range.size() * bytes;
    left.emplace_back(payload + part.begin * bytes, payload + part.end * bytes);
    left.emplace_back(scales + part.begin * kScaleBytes, scales + part.end * kScaleBytes);
  }

  void add_residual(const std::byte* residual, std::vector<Bytes>& left) const {
    const GroupRange part = block_.work();
    const int64_t bytes = kGroup * value_bytes(*cell_.feedback);
    left.emplace_back(residual + part.begin * bytes, residual + part.end * bytes);
    if (*cell_.feedback == Store::kFp32) return;
    const std::byte* scales = residual + block_.range.size() * bytes;
    left.emplace_back(scales + part.begin * kScaleBytes, scales + part.end * kScaleBytes);
  }

  Cell cell_;
  Block block_;
  int64_t first_;  // element
  Reserved in_, out_, payload_, sum_, sender_, owner_;
};

class FarEnd : public PerCodec {
 protected:
  // The last groups of `cell` hold what the small tensor of `count` elements does.
  static void check(const Cell& cell, int64_t count) {
    Cell small = cell;
    small.count = count;
    const Bytes in = normal_elements(small, 1);
    const int64_t groups = small.layout().groups();
    FarTensor near(small, groups);
    FarTensor far(cell, groups);
    ASSERT_TRUE(near.is_mapped());
    if (!far.is_mapped())
      GTEST_SKIP() << "mmap of address space for " << describe(cell) << ": " << std::strerror(errno);
    EXPECT_TRUE(far.sweep(codec(), in) == near.sweep(reference_codec(), in)) << describe(cell);
  }
};

INSTANTIATE_TEST_SUITE_P(Codecs, FarEnd, ::testing::ValuesIn(available_codecs()), codec_of);

// More than 2^33 elements, 2^32 bytes of codes, 2^31 bytes of everything else.
TEST_P(FarEnd, OfOneLongRowIsLikeASmallTensor) {
  constexpr int64_t kCount = (int64_t{1} << 33) + 64 * 12 + 37;
  for (const Cell& cell : cells(kCount, 0)) {
    if (cell.feedback) check(cell, 64 * 12 + 37);
    if (IsSkipped() || HasFatalFailure()) return;
  }
}

TEST_P(FarEnd, OfManyRowsIsLikeASmallTensor) {
  for (const Cell& cell : cells(int64_t{100} << 27, 100)) {
    if (cell.feedback) check(cell, 700);
    if (IsSkipped() || HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace echo_comm::core
