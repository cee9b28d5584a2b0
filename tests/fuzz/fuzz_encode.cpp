// Any elements and residuals: every codec encodes, reduces and decodes them to the bytes of the reference.
#include "cell.hpp"
#include "codec/simd.hpp"

namespace echo_comm::core {
namespace {

struct Input {
  explicit Input(Source& source)
      : cell(any_cell(source)),
        decode{1 + source.byte() % 64, source.flag()},
        offset(source.byte() % 64),
        state(source, cell),
        in(source.elements(cell.layout.count(), cell.dtype)),
        world(to_size(source.number(1, 3))) {
    reduce.rank = static_cast<int>(source.number(0, static_cast<int64_t>(world) - 1));
    reduce.batch_invariant = source.flag();
    reduce.divisor = decode.divisor;
    for (std::size_t i = 0; i < world; ++i) received.push_back(source.payload(cell.block()));
  }

  Cell cell;
  DecodeOptions decode;
  std::size_t offset;
  State state;
  Bytes in;
  std::size_t world;
  ReduceOptions reduce;
  std::vector<Bytes> received;
};

// The own encoding, its decode, the reduction with what others sent, and the decode of that.
class Sequence {
 public:
  Sequence(const Codec& codec, const Input& input)
      : codec_(codec),
        input_(input),
        block_(input.cell.block()),
        state_(input.state),
        in_(input.in, element_offset(input.offset, input.cell.dtype)),
        trace_(input.cell) {}

  Trace run() {
    Unaligned sent = payload();
    trace_.add("poisoned groups", codec_.encode(block_, in_.data(), state_.residuals(), sent.data()));
    record("payload", sent);
    decode(sent);

    std::vector<Unaligned> received;
    for (const Bytes& bytes : input_.received) received.emplace_back(bytes, input_.offset);
    std::vector<const std::byte*> pointers;
    for (Unaligned& bytes : received) pointers.push_back(bytes.data());
    pointers[to_size(input_.reduce.rank)] = nullptr;
    Unaligned sum = payload();
    trace_.add("poisoned sums",
               codec_.reduce(block_, pointers, in_.data(), state_.residuals(), input_.reduce, sum.data()));
    record("sum", sum);
    decode(sum);
    return trace_;
  }

 private:
  [[nodiscard]] Unaligned payload() const { return {Bytes(to_size(block_.encoded_bytes())), input_.offset}; }

  void decode(Unaligned& payload) {
    Unaligned out(input_.in, element_offset(input_.offset, input_.cell.dtype));
    const std::byte* payloads[] = {payload.data()};
    trace_.add("NaN groups", codec_.decode(block_, payloads, state_.residuals(), input_.decode, out.data()));
    record("output", out);
  }

  void record(const char* what, const Unaligned& written) {
    trace_.add(what, written.content());
    trace_.add(state_);
  }

  const Codec& codec_;
  const Input& input_;
  Block block_;
  State state_;
  Unaligned in_;
  Trace trace_;
};

void check(Source source) {
  const Input input(source);
  const Trace expected = Sequence(reference_codec(), input).run();
  for (const Codec* codec : vector_codecs()) Sequence(*codec, input).run().expect(expected, input.cell, *codec);
}

}  // namespace
}  // namespace echo_comm::core

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  echo_comm::core::check({data, size});
  return 0;
}
