// What the sweeps touch: between pages that fault in front of and behind every buffer, on pages that cannot be written
// for what they only read, at any alignment (A7, A8, A12, B5).
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <span>
#include <stdexcept>

#include "support.hpp"

namespace echo_comm::core {
namespace {

constexpr std::byte kSentinel{0xA5};

enum class Side { kFront, kBack };

// A buffer that touches the forbidden page on one side, `gap` bytes between them; the rest of its pages holds sentinels.
class Guarded {
 public:
  Guarded() : page_(to_size(sysconf(_SC_PAGESIZE))), capacity_((kMost + page_ - 1) / page_ * page_) {
    void* all = mmap(nullptr, capacity_ + 2 * page_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) throw std::runtime_error("mmap of guarded pages failed");
    first_ = static_cast<std::byte*>(all) + page_;
  }
  ~Guarded() { munmap(first_ - page_, capacity_ + 2 * page_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  std::byte* place(const Bytes& content, Side side, std::size_t gap) {
    if (content.size() + gap > capacity_) throw std::runtime_error("a guarded buffer is too small");
    mprotect(first_, capacity_, PROT_READ | PROT_WRITE);
    std::memset(first_, std::to_integer<int>(kSentinel), capacity_);
    used_ = {side == Side::kFront ? first_ + gap : first_ + capacity_ - gap - content.size(), content.size()};
    std::ranges::copy(content, used_.begin());
    return used_.data();
  }
  void make_read_only() { mprotect(first_, capacity_, PROT_READ); }

  [[nodiscard]] Bytes content() const { return {used_.begin(), used_.end()}; }
  [[nodiscard]] bool is_rest_untouched() const {
    const auto before = to_size(used_.data() - first_);
    return are_sentinels(first_, before) &&
           are_sentinels(used_.data() + used_.size(), capacity_ - before - used_.size());
  }

 private:
  // By memcmp, which sanitizers do not slow down.
  static bool are_sentinels(const std::byte* bytes, std::size_t count) {
    return count == 0 || (*bytes == kSentinel && std::memcmp(bytes, bytes + 1, count - 1) == 0);
  }

  static constexpr std::size_t kMost = 8192;  // 20 groups of fp32 residuals, and any gap

  std::size_t page_;
  std::size_t capacity_;
  std::byte* first_;
  std::span<std::byte> used_;
};

struct Placement {
  Side side = Side::kBack;
  std::size_t elements = 0;  // gaps
  std::size_t payload = 0;
  std::size_t residuals = 0;
};

// What one codec leaves behind.
struct Trace {
  std::vector<Bytes> bytes;
  std::vector<int64_t> poisoned;

  friend bool operator==(const Trace&, const Trace&) = default;
};

// What goes into the sweeps of one cell.
struct Inputs {
  explicit Inputs(const Cell& cell) : cell(cell), block(cell.block()), chunk(block) {
    chunk.range = chunk_of(block.range.size(), 3, 1);
    in = normal_elements(cell, 1);
    before = normal_elements(cell, 2);
    if (cell.feedback) {
      sender = normal_residual(block.range.size(), *cell.feedback, 3);
      owner = normal_residual(chunk.range.size(), *cell.feedback, 4);
    }
    for (uint32_t rank = 0; rank < 3; ++rank) {
      std::vector<float> values = normal_values(cell.count, 10 + rank);
      if (rank == 1 && cell.count > 0) values.back() = NAN;  // sums of all have a poisoned group at the end
      const Bytes other = to_elements(values, cell.dtype);
      sent.push_back(encoded(block, other));
      sent_to_chunk.push_back(encoded(chunk, other));
    }
  }

  Cell cell;
  Block block;
  Block chunk;
  Bytes in, before, sender, owner;
  std::vector<Bytes> sent, sent_to_chunk;  // by the ranks

 private:
  static Bytes encoded(const Block& block, const Bytes& in) {
    Bytes payload(to_size(block.encoded_bytes()));
    reference_codec().encode(block, in.data(), {}, payload.data());
    return payload;
  }
};

// Encode, reduce, decode and decode of a sum of three, with all buffers guarded.
class GuardedSweeps {
 public:
  Trace run(const Codec& codec, const Inputs& inputs, const Placement& placement) {
    codec_ = &codec;
    inputs_ = &inputs;
    placement_ = placement;
    trace_ = {};
    in_ = input_.place(inputs.in, placement.side, placement.elements);
    input_.make_read_only();
    residuals_ = {};
    if (const auto store = inputs.cell.feedback) {
      residuals_ = {*store, put(sender_, inputs.sender), put(owner_, inputs.owner), inputs.chunk.range};
    }
    encode();
    reduce();
    decode(1);
    if (!inputs.cell.format.exact()) decode(3);
    return trace_;
  }

 private:
  Residual put(Guarded& memory, const Bytes& bytes) const {
    const int64_t groups = static_cast<int64_t>(bytes.size()) / residual_bytes(1, *inputs_->cell.feedback);
    return {memory.place(bytes, placement_.side, placement_.residuals), groups};
  }

  std::byte* place_payload(const Block& block) {
    return payload_.place(Bytes(to_size(block.encoded_bytes())), placement_.side, placement_.payload);
  }

  std::vector<const std::byte*> receive(const std::vector<Bytes>& sent) {
    std::vector<const std::byte*> payloads;
    for (std::size_t rank = 0; rank < sent.size(); ++rank) {
      payloads.push_back(received_[rank].place(sent[rank], placement_.side, placement_.payload));
      received_[rank].make_read_only();
    }
    return payloads;
  }

  void encode() {
    std::byte* payload = place_payload(inputs_->block);
    trace_.poisoned.push_back(codec_->encode(inputs_->block, in_, residuals_, payload));
    record(payload_);
  }

  void reduce() {
    std::vector<const std::byte*> payloads = receive(inputs_->sent_to_chunk);
    payloads[1] = nullptr;
    for (const bool batch_invariant : {true, false}) {
      const ReduceOptions options{1, batch_invariant, 3};
      std::byte* payload = place_payload(inputs_->chunk);
      trace_.poisoned.push_back(codec_->reduce(inputs_->chunk, payloads, in_, residuals_, options, payload));
      record(payload_);
    }
  }

  void decode(std::size_t count) {
    const std::vector<const std::byte*> payloads = receive(inputs_->sent);
    for (const bool add : {false, true}) {
      std::byte* out = out_.place(inputs_->before, placement_.side, placement_.elements);
      const Payloads some(payloads.data(), count);
      trace_.poisoned.push_back(codec_->decode(inputs_->block, some, residuals_, {3, add}, out));
      record(out_);
    }
  }

  void record(const Guarded& written) {
    trace_.bytes.push_back(written.content());
    EXPECT_TRUE(written.is_rest_untouched()) << codec_->name() << ", " << describe(inputs_->cell);
    if (!inputs_->cell.feedback) return;
    for (const Guarded* residual : {&sender_, &owner_}) {
      trace_.bytes.push_back(residual->content());
      EXPECT_TRUE(residual->is_rest_untouched()) << codec_->name() << ", residual, " << describe(inputs_->cell);
    }
  }

  const Codec* codec_ = nullptr;
  const Inputs* inputs_ = nullptr;
  Placement placement_;
  Residuals residuals_;
  const std::byte* in_ = nullptr;
  Guarded input_, out_, payload_, sender_, owner_;
  std::array<Guarded, 3> received_;
  Trace trace_;
};

class Memory : public PerCodec {
 protected:
  GuardedSweeps sweeps_;
};

INSTANTIATE_TEST_SUITE_P(Codecs, Memory, ::testing::ValuesIn(available_codecs()), codec_of);

constexpr std::pair<int64_t, int64_t> kShapes[] = {{0, 0},   {1, 0},   {63, 0},  {64, 0},   {65, 0},
                                                   {127, 0}, {128, 0}, {576, 0}, {1000, 0}, {1000, 100}};

TEST_P(Memory, BehindAndInFrontOfEveryBufferIsNotTouched) {
  for (const auto& [count, row_length] : kShapes) {
    for (const Cell& cell : cells(count, row_length)) {
      const Inputs inputs(cell);
      const Trace expected = sweeps_.run(reference_codec(), inputs, {});
      for (const Side side : {Side::kFront, Side::kBack}) {
        ASSERT_TRUE(sweeps_.run(codec(), inputs, {.side = side}) == expected)
            << describe(cell) << (side == Side::kFront ? ", front" : ", back");
      }
    }
  }
}

// Elements are aligned to their size, residuals to 4 bytes; payloads need not be aligned at all.
TEST_P(Memory, AnyAlignmentGivesTheSameBytes) {
  for (const Cell& cell : cells(456, 228)) {  // rows of three whole groups and a part
    const Inputs inputs(cell);
    const Trace expected = sweeps_.run(reference_codec(), inputs, {});
    const std::size_t size = to_size(element_size(cell.dtype));
    for (std::size_t gap = 0; gap < 64; ++gap) {
      const Placement placement{Side::kFront, gap / size * size, gap, gap / 4 * 4};
      ASSERT_TRUE(sweeps_.run(codec(), inputs, placement) == expected) << describe(cell) << ", offset " << gap;
    }
  }
}

}  // namespace
}  // namespace echo_comm::core
