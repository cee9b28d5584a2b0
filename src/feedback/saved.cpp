// A pass as bytes, for checkpoints: a header, the lengths of the parts if there are any, both residuals. Little-endian, as
// the machines that the codec runs on.
#include <array>
#include <bit>
#include <cstring>

#include "base/error.hpp"
#include "feedback/feedback.hpp"

namespace echo_comm::core {
namespace {

struct Header {
  std::array<char, 8> magic = kMagic;
  uint32_t rank = 0;
  uint32_t size = 0;
  uint64_t count = 0;
  uint64_t row_length = 0;
  uint64_t calls = 0;
  uint64_t sender_bytes = 0;
  uint64_t owner_bytes = 0;
  uint8_t begun = 0;  // 0: no pass; all below and the numbers above are 0
  uint8_t store = 0;
  uint8_t rotation = 0;
  uint8_t in_parts = 0;
  uint8_t owing = 0;
  std::array<uint8_t, 3> reserved{};

  static constexpr std::array<char, 8> kMagic = {'E', 'C', 'H', 'O', 'F', 'B', '0', '1'};
};
static_assert(sizeof(Header) == 64 && std::is_trivially_copyable_v<Header>);
static_assert(std::endian::native == std::endian::little);

void append(std::vector<std::byte>& to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  const std::size_t at = to.size();
  to.resize(at + bytes);
  std::memcpy(&to[at], from, bytes);
}

// Takes bytes off the front; what is missing is an error.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : left_(bytes) {}

  [[nodiscard]] std::span<const std::byte> take(uint64_t bytes) {
    require(bytes <= left_.size(), ErrorCode::kArgument, "feedback: the saved state ends too early, ",
            bytes - left_.size(), " bytes are missing");
    const auto taken = left_.first(static_cast<std::size_t>(bytes));
    left_ = left_.subspan(static_cast<std::size_t>(bytes));
    return taken;
  }
  template <typename T>
  void read(T& value) {
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
  }
  [[nodiscard]] bool empty() const { return left_.empty(); }

 private:
  std::span<const std::byte> left_;
};

int64_t length_of(uint64_t value, const char* what) {
  require(value <= static_cast<uint64_t>(kMaxCount), ErrorCode::kArgument, "feedback: the saved state has a ", what,
          " of ", value);
  return static_cast<int64_t>(value);
}

Partition read_partition(const Header& header, Reader& reader) {
  const int64_t row_length = length_of(header.row_length, "row length");
  if (header.in_parts == 0) {
    return Partition::chunks(GroupLayout(length_of(header.count, "count"), row_length), static_cast<int>(header.size));
  }
  std::vector<int64_t> counts;
  for (uint32_t rank = 0; rank < header.size; ++rank) {
    uint64_t count = 0;
    reader.read(count);
    counts.push_back(length_of(count, "part"));
  }
  return Partition::parts(counts, row_length);
}

// NaN and infinities would spread over their group in the next call.
void require_finite(std::span<const std::byte> residual, int64_t groups, Store store) {
  const auto finite = [](uint32_t bits) { return (bits & 0x7F800000U) != 0x7F800000U; };
  bool all = true;
  if (store == Store::kFp32) {
    for (std::size_t at = 0; at < residual.size(); at += sizeof(uint32_t)) {
      uint32_t bits = 0;
      std::memcpy(&bits, &residual[at], sizeof bits);
      all = all && finite(bits);
    }
  } else {
    for (std::size_t at = static_cast<std::size_t>(groups * kGroup * value_bytes(store)); at < residual.size();
         at += 2) {
      uint16_t scale = 0;
      std::memcpy(&scale, &residual[at], sizeof scale);
      all = all && finite(uint32_t{scale} << 16);
    }
  }
  require(all, ErrorCode::kArgument, "feedback: the saved state has residuals that are not finite");
}

}  // namespace

std::vector<std::byte> Feedback::save() const {
  Header header;
  header.rank = static_cast<uint32_t>(rank_);
  header.size = static_cast<uint32_t>(size_);
  std::vector<std::byte> state;
  if (!pass_) {
    append(state, &header, sizeof header);
    return state;
  }
  header.begun = 1;
  header.count = static_cast<uint64_t>(pass_->partition.count());
  header.row_length = static_cast<uint64_t>(pass_->partition.row_length());
  header.calls = static_cast<uint64_t>(pass_->calls);
  header.store = static_cast<uint8_t>(pass_->store);
  header.rotation = pass_->rotation ? 1 : 0;
  header.in_parts = pass_->partition.in_parts() ? 1 : 0;
  header.owing = pass_->owing ? 1 : 0;
  header.sender_bytes = pass_->owing ? sender_.size() : 0;
  header.owner_bytes = pass_->owing ? owner_.size() : 0;
  append(state, &header, sizeof header);
  if (pass_->partition.in_parts()) {
    for (int rank = 0; rank < size_; ++rank) {
      const auto count = static_cast<uint64_t>(pass_->partition.of(rank).layout.count());
      append(state, &count, sizeof count);
    }
  }
  append(state, sender_.data(), static_cast<std::size_t>(header.sender_bytes));
  append(state, owner_.data(), static_cast<std::size_t>(header.owner_bytes));
  return state;
}

void Feedback::load(std::span<const std::byte> state) {
  Reader reader(state);
  Header header;
  reader.read(header);
  require(header.magic == Header::kMagic, ErrorCode::kArgument, "feedback: this is no saved state of a feedback");
  require(header.rank == static_cast<uint32_t>(rank_) && header.size == static_cast<uint32_t>(size_),
          ErrorCode::kArgument, "feedback: the state was saved by rank ", header.rank, " of ", header.size,
          ", this is rank ", rank_, " of ", size_);
  if (header.begun == 0) {
    require(reader.empty(), ErrorCode::kArgument, "feedback: the saved state has bytes too many");
    return reset();
  }
  const Partition partition = read_partition(header, reader);
  require(partition.count() == static_cast<int64_t>(header.count) && partition.count() <= capacity_,
          ErrorCode::kArgument, "feedback: created for ", capacity_, " elements, the saved state has ",
          partition.count());
  require(header.store >= 1 && header.store <= 3, ErrorCode::kArgument,
          "feedback: the saved state has the unknown store ", int{header.store});
  const auto store = static_cast<Store>(header.store);
  const bool fits = store_ ? store == *store_ : store != Store::kFp32;
  require(fits, ErrorCode::kArgument, "feedback: the state was saved with residuals of ", value_bytes(store),
          " bytes a value, this feedback keeps ", value_bytes(first_store()));
  const GroupRange owned = partition.in_parts() ? GroupRange{} : partition.of(rank_).range;
  const bool owing = header.owing != 0;
  const auto expected = [&](int64_t groups) {
    return owing ? static_cast<uint64_t>(residual_bytes(groups, store)) : 0;
  };
  require(header.sender_bytes == expected(partition.groups()) && header.owner_bytes == expected(owned.size()),
          ErrorCode::kArgument, "feedback: the saved state has ", header.sender_bytes, " and ", header.owner_bytes,
          " bytes of residuals, expected ", expected(partition.groups()), " and ", expected(owned.size()));
  const auto sender = reader.take(header.sender_bytes);
  const auto owner = reader.take(header.owner_bytes);
  require(reader.empty(), ErrorCode::kArgument, "feedback: the saved state has bytes too many");
  require_finite(sender, partition.groups(), store);
  require_finite(owner, owned.size(), store);

  // Nothing was changed so far; from here on nothing but memory can fail.
  std::vector<std::byte> new_sender(sender.begin(), sender.end());
  std::vector<std::byte> new_owner(owner.begin(), owner.end());
  pass_ = Pass{partition, header.rotation != 0, owned, store, static_cast<int64_t>(header.calls), owing};
  sender_ = std::move(new_sender);
  owner_ = std::move(new_owner);
}

}  // namespace echo_comm::core
