#include "transport/inproc/inproc.hpp"

#include <utility>

#include "transport/mailbox/mailbox.hpp"
#include "transport/mailbox/mapping.hpp"

namespace echo_comm::core {
namespace {

// The last rank to go frees the memory. A thread does not die alone, so died() stays false.
class ProcessMemory final : public Backing {
 public:
  explicit ProcessMemory(Mapping memory) : memory_(std::move(memory)) {}

 private:
  Mapping memory_;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> create_inproc(int size, int64_t slot_bytes) {
  Region region(size, slot_bytes);
  Mapping memory = Mapping::anonymous(region.bytes());
  region.format(memory.bytes());
  const auto backing = std::make_shared<const ProcessMemory>(std::move(memory));
  for (int r = 0; r < size; ++r) region.announce(r);
  std::vector<std::unique_ptr<Transport>> ranks;
  ranks.reserve(static_cast<std::size_t>(size));
  for (int r = 0; r < size; ++r) ranks.push_back(std::make_unique<Mailbox>(region, r, "inproc", backing));
  return ranks;
}

}  // namespace echo_comm::core
