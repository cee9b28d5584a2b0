#include "echo_perf/codec_case.hpp"

#include "common/element.hpp"

namespace echo_comm::tools {

echo_range_t whole_range(const CodecCase& what, std::int64_t values) {
  echo_range_t range = ECHO_RANGE_INITIALIZER;
  range.dtype = what.dtype;
  range.count = static_cast<std::size_t>(values);
  range.bits = what.bits;
  range.rotation = what.rotation ? ECHO_ON : ECHO_OFF;
  range.group_end = echo_groups(range.count, range.row_length);
  return range;
}

Footprint::Footprint(const CodecCase& what)
    : values(what.values),
      tensor(what.values * static_cast<std::int64_t>(element_size(what.dtype))),
      tensor_passes(what.add ? 2 : 1),
      payloads(what.ranks),  // reduce: those of the others are read, that of the sum is written
      residuals(!what.feedback                 ? 0
                : what.stage == Stage::kReduce ? 2
                                               : 1) {
  const echo_range_t range = whole_range(what, values);
  std::size_t bytes = 0;
  check(echo_encoded_size(&range, &bytes));
  payload = static_cast<std::int64_t>(bytes);
  residual = what.feedback ? echo_residual_bytes(range.group_end, *what.feedback) : 0;
}

double Footprint::traffic() const {
  const std::int64_t bytes = tensor_passes * tensor + payloads * payload + 2 * residuals * residual;
  return static_cast<double>(bytes) / static_cast<double>(values);
}

std::int64_t Footprint::memory() const { return 2 * tensor + payloads * payload + residuals * residual; }

}  // namespace echo_comm::tools
