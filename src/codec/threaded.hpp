// A codec on several threads: the sweeps of another codec over parts of the block. Groups do not depend on each other,
// so the bytes are the same for any number of threads.
#pragma once

#include "base/workers.hpp"
#include "codec/codec.hpp"

namespace echo_comm::core {

class ThreadedCodec final : public Codec {
 public:
  // A part of fewer groups takes less time than waking a thread.
  static constexpr int64_t kLeastGroups = 1024;

  // Both must outlive it.
  ThreadedCodec(const Codec& codec, Workers& workers) : codec_(codec), workers_(workers) {}

  [[nodiscard]] const char* name() const noexcept override { return codec_.name(); }
  int64_t encode(const Block& block, const void* in, const Residuals& residuals, std::byte* payload) const override;
  int64_t reduce(const Block& block, Payloads payloads, const void* in, const Residuals& residuals,
                 const ReduceOptions& options, std::byte* payload) const override;
  int64_t sum(const Block& block, Payloads payloads, const void* in, const Residuals& residuals,
              const ReduceOptions& options, void* out) const override;
  int64_t decode(const Block& block, Payloads payloads, const Residuals& residuals, const DecodeOptions& options,
                 void* out) const override;

 private:
  template <typename Sweep>
  int64_t in_parts(const Block& block, const Sweep& sweep) const;

  const Codec& codec_;
  Workers& workers_;
};

}  // namespace echo_comm::core
