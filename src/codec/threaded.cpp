#include "codec/threaded.hpp"

#include <algorithm>
#include <atomic>

namespace echo_comm::core {

template <typename Sweep>
int64_t ThreadedCodec::in_parts(const Block& block, const Sweep& sweep) const {
  const GroupRange work = block.work();
  const int64_t parts = std::clamp<int64_t>(work.size() / kLeastGroups, 1, workers_.threads());
  if (parts == 1) return sweep(block);
  std::atomic<int64_t> poisoned{0};
  workers_.run(parts, [&](int64_t index) {
    const GroupRange part = chunk_of(work.size(), static_cast<int>(parts), static_cast<int>(index));
    Block own = block;
    own.part = GroupRange{work.begin + part.begin, work.begin + part.end};
    poisoned.fetch_add(sweep(own), std::memory_order_relaxed);
  });
  return poisoned.load(std::memory_order_relaxed);
}

int64_t ThreadedCodec::encode(const Block& block, const void* in, const Residuals& residuals,
                              std::byte* payload) const {
  return in_parts(block, [&](const Block& part) { return codec_.encode(part, in, residuals, payload); });
}

int64_t ThreadedCodec::reduce(const Block& block, Payloads payloads, const void* in, const Residuals& residuals,
                              const ReduceOptions& options, std::byte* payload) const {
  return in_parts(block,
                  [&](const Block& part) { return codec_.reduce(part, payloads, in, residuals, options, payload); });
}

int64_t ThreadedCodec::sum(const Block& block, Payloads payloads, const void* in, const Residuals& residuals,
                           const ReduceOptions& options, void* out) const {
  return in_parts(block, [&](const Block& part) { return codec_.sum(part, payloads, in, residuals, options, out); });
}

int64_t ThreadedCodec::decode(const Block& block, Payloads payloads, const Residuals& residuals,
                              const DecodeOptions& options, void* out) const {
  return in_parts(block, [&](const Block& part) { return codec_.decode(part, payloads, residuals, options, out); });
}

}  // namespace echo_comm::core
