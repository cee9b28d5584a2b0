// Any bytes as payloads: every codec decodes them to the bytes of the reference, and touches nothing else.
#include "cell.hpp"
#include "codec/simd.hpp"

namespace echo_comm::core {
namespace {

struct Input {
  explicit Input(Source& source)
      : cell(any_cell(source)),
        options{1 + source.byte() % 64, source.flag()},
        parts(cell.format.exact() ? 1 : to_size(source.number(1, 3))),
        offset(source.byte() % 64),
        state(source, cell),
        before(source.elements(cell.layout.count(), cell.dtype)) {
    for (std::size_t i = 0; i < parts; ++i) payloads.push_back(source.payload(cell.block()));
  }

  Cell cell;
  DecodeOptions options;
  std::size_t parts;
  std::size_t offset;
  State state;
  Bytes before;
  std::vector<Bytes> payloads;
};

Trace decode(const Codec& codec, const Input& input) {
  Trace trace(input.cell);
  State state = input.state;
  std::vector<Unaligned> payloads;
  std::vector<const std::byte*> pointers;
  payloads.reserve(input.parts);
  for (const Bytes& payload : input.payloads) {
    payloads.emplace_back(payload, input.offset);
    pointers.push_back(payloads.back().data());
  }
  Unaligned out(input.before, element_offset(input.offset, input.cell.dtype));
  trace.add("count of NaN groups",
            codec.decode(input.cell.block(), pointers, state.residuals(), input.options, out.data()));
  trace.add("output", out.content());
  trace.add(state);
  return trace;
}

void check(Source source) {
  const Input input(source);
  const Trace expected = decode(reference_codec(), input);
  for (const Codec* codec : vector_codecs()) decode(*codec, input).expect(expected, input.cell, *codec);
}

}  // namespace
}  // namespace echo_comm::core

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  echo_comm::core::check({data, size});
  return 0;
}
