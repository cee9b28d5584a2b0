#include "collective/communicator.hpp"

#include <cstring>

#include "codec/dispatch.hpp"
#include "codec/threaded.hpp"

namespace echo_comm::core {

const std::byte* Call::receive(int from, Route route, uint8_t shot, GroupRange range) {
  const std::span<const std::byte> message = transport.receive(from, route, deadline);
  MessageHeader expected = header;
  expected.shot = shot;
  expected.rank = static_cast<uint16_t>(from);
  check_header(message, expected, transport.rank(), block(range).encoded_bytes());
  return message.data() + kHeaderBytes;
}

const std::byte* Call::receive_first(int from, Route route, uint8_t shot, GroupRange range) {
  const Route arrived = transport.arrival(from, route, deadline);
  if (arrived == route) return receive(from, route, shot, range);
  receive(from, arrived, shot, range);
  fail(ErrorCode::kInternal, "all_reduce: rank ", from, " sent a fitting message on the wrong route");
}

namespace {

MessageHeader header_of(const GroupLayout& layout, Dtype dtype, const CallOptions& options, bool batch_invariant,
                        Kind kind, bool feedback) {
  require(layout.row_length() <= UINT32_MAX, ErrorCode::kArgument, "row length ", layout.row_length(), " is more than ",
          UINT32_MAX);
  MessageHeader header;
  header.kind = kind;
  header.dtype = dtype;
  header.bits = static_cast<uint8_t>(options.format.bits);
  header.count = static_cast<uint64_t>(layout.count());
  header.row_length = static_cast<uint32_t>(layout.row_length());
  const auto flag = [](bool set, uint8_t bit) { return set ? bit : uint8_t{0}; };
  header.flags = static_cast<uint8_t>(
      flag(options.format.rotation, MessageHeader::kRotation) | flag(feedback, MessageHeader::kFeedback) |
      flag(options.average, MessageHeader::kAverage) | flag(batch_invariant, MessageHeader::kBatchInvariant) |
      flag(options.flush, MessageHeader::kFlush));
  return header;
}

Residuals residuals_of(Feedback* feedback) {
  if (feedback == nullptr) return {};
  return feedback->residuals();
}

}  // namespace

void Communicator::all_reduce(const void* in, void* out, int64_t count, Dtype dtype, Feedback* feedback,
                              const CallOptions& options) {
  // Everything that can be wrong with this rank's arguments is found before the transport is touched.
  const GroupLayout layout(count, options.row_length);
  const Choice choice = select(layout, options.format, size(), options.algorithm, settings_.batch_invariant);
  MessageHeader header = header_of(layout, dtype, options, settings_.batch_invariant, choice.kind, feedback != nullptr);
  header.sequence = sequence_;
  header.rank = static_cast<uint16_t>(rank());
  transport_->check();
  if (feedback != nullptr) feedback->join_pass(layout, options.format.rotation);

  if (size() == 1) {
    if (in != out && count > 0) std::memcpy(out, in, static_cast<std::size_t>(count * element_size(dtype)));
  } else {
    const int64_t room = static_cast<int64_t>(transport_->max_message()) - kHeaderBytes;
    const ThreadedCodec codec(active_codec(), *workers_);
    Call call{.transport = *transport_,
              .codec = codec,
              .layout = layout,
              .format = options.format,
              .dtype = dtype,
              .in = in,
              .out = out,
              .residuals = residuals_of(feedback),
              .header = header,
              .batch_invariant = settings_.batch_invariant,
              .divisor = options.average ? size() : 1,
              .segment_groups = std::min(choice.segment_groups, groups_that_fit(room, options.format, dtype)),
              .deadline = Deadline::in(settings_.timeout),
              .counters = counters_};
    try {
      transport_->begin_call(sequence_);
      choice.kind == Kind::kOneShot ? one_shot(call) : two_shot(call);
    } catch (const Error& error) {
      transport_->fail(error);
      throw;
    } catch (const std::exception& error) {
      transport_->fail(Error(ErrorCode::kInternal, error.what()));
      throw;
    }
    ++(options.format.exact() ? counters_.exact_calls : counters_.coded_calls);
    counters_.one_shot_calls += choice.kind == Kind::kOneShot ? 1 : 0;
  }
  counters_.passed_calls += size() == 1 ? 1 : 0;
  counters_.flush_calls += options.flush ? 1 : 0;
  counters_.logical_bytes += static_cast<uint64_t>(count * element_size(dtype));
  if (options.flush && feedback != nullptr) feedback->reset();
  ++sequence_;
}

void Communicator::abort(const std::string& reason) noexcept { transport_->fail(Error(ErrorCode::kAborted, reason)); }

}  // namespace echo_comm::core
