/* Echo in C++20: owners, spans and exceptions over the C interface of echo.h. Header only, so it is compiled with the
 * caller's own flags and standard library; the ABI is that of echo.h. What a call means is said there.
 *
 *   using namespace echo_comm;
 *   Communicator comm = Communicator::create("shm://job?rank=0&size=2", {.timeout = std::chrono::seconds(10)});
 *   Feedback feedback(comm, hidden.size());
 *   comm.all_reduce(hidden, {.feedback = &feedback});                 // in place, 4 bits
 *   comm.all_reduce(hidden, {.flush = true, .feedback = &feedback});  // last call of the pass
 *
 * Errors: a function that fails throws Exception; destructors never throw. Calls on one Communicator are made by one
 * thread at a time; different communicators are independent.
 */
#ifndef ECHO_COMM_ECHO_HPP
#define ECHO_COMM_ECHO_HPP

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "echo_comm/echo.h"

namespace echo_comm {

// ---- errors ---------------------------------------------------------------------------------------------------------

/** What went wrong, in words for a person (what()) and as a number for a program (code()). */
class Exception : public std::runtime_error {
 public:
  Exception(echo_result_t code, const std::string& text) : std::runtime_error(text), code_(code) {}

  [[nodiscard]] echo_result_t code() const noexcept { return code_; }

 private:
  echo_result_t code_;
};

/** Throws Exception with this thread's echo_last_error() unless `result` is ECHO_SUCCESS. */
inline void check(echo_result_t result) {
  if (result == ECHO_SUCCESS) return;
  const std::string text = echo_last_error();
  throw Exception(result, text.empty() ? echo_result_string(result) : text);
}

// ---- element types --------------------------------------------------------------------------------------------------

/** The 16 bits of an IEEE half and of a bfloat16. Types of their own, so that a span knows what it holds. */
enum class Float16 : std::uint16_t {};
enum class Bfloat16 : std::uint16_t {};

template <class T>
concept Element = std::same_as<T, float> || std::same_as<T, Float16> || std::same_as<T, Bfloat16>;

/** The echo_dtype_t of an element type. */
template <Element T>
inline constexpr echo_dtype_t dtype_of = std::same_as<T, float>     ? ECHO_FLOAT32
                                         : std::same_as<T, Float16> ? ECHO_FLOAT16
                                                                    : ECHO_BFLOAT16;

/** View of raw 16-bit storage (a vector, array or span of std::uint16_t): view_as<Bfloat16>(bits). Copies nothing. */
template <Element T, class Bits>
[[nodiscard]] auto view_as(Bits&& bits) noexcept {
  const std::span raw(bits);
  using Raw = typename decltype(raw)::element_type;
  static_assert(std::same_as<std::remove_const_t<Raw>, std::uint16_t> && sizeof(T) == sizeof(Raw));
  using To = std::conditional_t<std::is_const_v<Raw>, const T, T>;
  return std::span<To>(reinterpret_cast<To*>(raw.data()), raw.size());
}

// ---- options: every member may be left out ---------------------------------------------------------------------------

class Feedback;

/** Settings of a communicator, see echo_config_t; 0 means that the library decides. */
struct Config {
  std::chrono::milliseconds timeout{0};          ///< longest wait of creation and of any call
  std::int64_t slot_bytes = 0;                   ///< (all ranks) bytes of one mailbox slot
  echo_switch_t batch_invariant = ECHO_DEFAULT;  ///< (all ranks) a token's result depends on its own values alone
  echo_log_fn log = nullptr;                     ///< receives log lines
  void* log_context = nullptr;                   ///< handed to `log`; must outlive the communicator
  int threads = 0;                               ///< threads that code large calls
  const char* table = nullptr;                   ///< rows of the table of choices, or "@FILE"; rank 0's counts
  echo_switch_t tune = ECHO_DEFAULT;             ///< measure the table at creation; rank 0's counts

  [[nodiscard]] echo_config_t to_c() const noexcept {
    return {
        sizeof(echo_config_t), timeout.count(), slot_bytes, batch_invariant, log, log_context, threads, table, tune};
  }
};

/** Options of one all-reduce, equal on all ranks, see echo_call_t. */
struct Call {
  echo_op_t op = ECHO_SUM;                           ///< or ECHO_AVG
  int bits = 0;                                      ///< 3, 4, 5, 6, 8 or ECHO_BITS_EXACT; 0: 4, at a flush 8
  bool flush = false;                                ///< last call of the pass
  echo_algorithm_t algorithm = ECHO_ALGORITHM_AUTO;  ///< by size and world size
  echo_switch_t rotation = ECHO_DEFAULT;             ///< default on
  std::size_t row_length = 0;                        ///< groups start anew at each row; 0: one row
  const Feedback* feedback = nullptr;                ///< residuals of the current pass, or none

  [[nodiscard]] echo_call_t to_c() const noexcept {
    return {sizeof(echo_call_t), op, bits, flush ? 1 : 0, algorithm, rotation, row_length};
  }
};

// ---- started calls --------------------------------------------------------------------------------------------------

/** A call that was started and not yet waited for. Moves, does not copy. Buffers, residuals and the Call's Feedback stay
 * in use until wait() returned or the destructor has: it waits, too, and drops what went wrong. */
class Request {
 public:
  /** Owns a started call of the C interface. */
  explicit Request(echo_request_t request) noexcept : request_(request) {}

  /** Whether the call has ended, well or not. Never waits; after wait(): true. Thread-safe. */
  [[nodiscard]] bool done() const {
    int done = 1;
    if (request_) check(echo_test(request_.get(), &done));
    return done != 0;
  }

  /** Waits for the end of the call; throws what a blocking call would have thrown. Again: returns at once. */
  void wait() {
    if (request_) check(echo_wait(request_.release()));
  }

 private:
  struct Wait {
    void operator()(echo_request_t request) const noexcept { static_cast<void>(echo_wait(request)); }
  };
  std::unique_ptr<struct ::echo_request_object, Wait> request_;
};

// ---- communicator ---------------------------------------------------------------------------------------------------

/** Elements of each rank's part, in rank order, adding up to the whole tensor; empty: equal parts. */
using Counts = std::span<const std::size_t>;

/** One rank of a communicator. Moves, does not copy; leaves when destroyed (peers that wait get ECHO_ERROR_PEER). */
class Communicator {
 public:
  /** Joins the communicator named by `url`, e.g. "shm://NAME?rank=R&size=W"; returns when all ranks joined. */
  [[nodiscard]] static Communicator create(const std::string& url, const Config& config = {}) {
    const echo_config_t settings = config.to_c();
    echo_comm_t comm = nullptr;
    check(echo_comm_create(url.c_str(), &settings, &comm));
    return Communicator(comm);
  }

  /** All `size` ranks inside this process, in rank order; give each to a thread of its own. */
  [[nodiscard]] static std::vector<Communicator> create_all(int size, const Config& config = {}) {
    const echo_config_t settings = config.to_c();
    std::vector<echo_comm_t> handles(size > 0 ? static_cast<std::size_t>(size) : 1);
    std::vector<Communicator> comms;
    comms.reserve(handles.size());  // nothing below can throw between creation and ownership
    check(echo_comm_create_all(size, &settings, handles.data()));
    for (echo_comm_t handle : handles) comms.push_back(Communicator(handle));
    return comms;
  }

  [[nodiscard]] int rank() const noexcept { return echo_comm_rank(get()); }
  [[nodiscard]] int size() const noexcept { return echo_comm_size(get()); }
  [[nodiscard]] std::string transport() const { return echo_comm_transport(get()); }

  /** Sums `in` over all ranks into `out`; every rank gets the same bytes. Both have the same number of elements. */
  void all_reduce(std::span<const float> in, std::span<float> out, const Call& call = {}) { sum(in, out, call); }
  void all_reduce(std::span<const Float16> in, std::span<Float16> out, const Call& call = {}) { sum(in, out, call); }
  void all_reduce(std::span<const Bfloat16> in, std::span<Bfloat16> out, const Call& call = {}) { sum(in, out, call); }

  /** The same in place. */
  void all_reduce(std::span<float> data, const Call& call = {}) { sum<float>(data, data, call); }
  void all_reduce(std::span<Float16> data, const Call& call = {}) { sum<Float16>(data, data, call); }
  void all_reduce(std::span<Bfloat16> data, const Call& call = {}) { sum<Bfloat16>(data, data, call); }

  // In what follows `in` and `out` are contiguous ranges of one element type (vectors, arrays, spans); the whole tensor
  // is the longer one. What may be in place is said in echo.h.

  /** Sums `in`, the whole tensor, over all ranks; `out` becomes this rank's part of the sum. */
  template <class In, class Out>
  void reduce_scatter(const In& in, Out&& out, Counts counts = {}, const Call& call = {}) {
    const auto [from, to, whole] = parts_of("reduce_scatter", std::span(in), std::span(out), counts, true);
    const echo_call_t options = call.to_c();
    check(echo_reduce_scatter(from.data(), to.data(), whole, pointer(counts), type_of(to), get(), residuals(call),
                              &options));
  }

  /** Puts the parts of all ranks together in `out`, the whole tensor; `in` is this rank's part. */
  template <class In, class Out>
  void all_gather(const In& in, Out&& out, Counts counts = {}, const Call& call = {}) {
    const auto [from, to, whole] = parts_of("all_gather", std::span(in), std::span(out), counts, false);
    const echo_call_t options = call.to_c();
    check(echo_all_gather(from.data(), to.data(), whole, pointer(counts), type_of(to), get(), &options));
  }

  /** Copies the `data` of rank `root` to all ranks, bit for bit. */
  template <class Data>
  void broadcast(Data&& data, int root) {
    const std::span all(data);
    check(echo_broadcast(all.data(), all.data(), all.size(), type_of(all), root, get()));
  }

  /** Returns when every rank has called it. */
  void barrier() { check(echo_barrier(get())); }

  /** The collectives without waiting for them; see Request. */
  template <class In, class Out>
  [[nodiscard]] Request start_all_reduce(const In& in, Out&& out, const Call& call = {}) {
    const std::span from(in);
    const std::span to(out);
    same_size(from.size(), to.size());
    const echo_call_t options = call.to_c();
    echo_request_t request = nullptr;
    check(echo_all_reduce_start(from.data(), to.data(), to.size(), type_of(to), get(), residuals(call), &options,
                                &request));
    return Request(request);
  }
  template <class In, class Out>
  [[nodiscard]] Request start_reduce_scatter(const In& in, Out&& out, Counts counts = {}, const Call& call = {}) {
    const auto [from, to, whole] = parts_of("reduce_scatter", std::span(in), std::span(out), counts, true);
    const echo_call_t options = call.to_c();
    echo_request_t request = nullptr;
    check(echo_reduce_scatter_start(from.data(), to.data(), whole, pointer(counts), type_of(to), get(), residuals(call),
                                    &options, &request));
    return Request(request);
  }
  template <class In, class Out>
  [[nodiscard]] Request start_all_gather(const In& in, Out&& out, Counts counts = {}, const Call& call = {}) {
    const auto [from, to, whole] = parts_of("all_gather", std::span(in), std::span(out), counts, false);
    const echo_call_t options = call.to_c();
    echo_request_t request = nullptr;
    check(
        echo_all_gather_start(from.data(), to.data(), whole, pointer(counts), type_of(to), get(), &options, &request));
    return Request(request);
  }

  /** How the last collective that succeeded went, and why. */
  [[nodiscard]] echo_path_t last_path() const {
    echo_path_t path = ECHO_PATH_INITIALIZER;
    check(echo_comm_last_path(get(), &path));
    return path;
  }

  /** How such a call would go, without making it; `count` elements of the whole tensor. Equal on all ranks. */
  [[nodiscard]] echo_path_t choose(echo_collective_t collective, std::size_t count, const Call& call = {}) const {
    echo_path_t path = ECHO_PATH_INITIALIZER;
    const echo_call_t options = call.to_c();
    check(echo_comm_choose(get(), collective, count, call.feedback != nullptr ? 1 : 0, &options, &path));
    return path;
  }

  /** The table of choices in use, one row a line; empty when the built-in rules alone count. */
  [[nodiscard]] std::string table() const { return echo_comm_table(get()); }

  /** Makes calls in progress and later ones fail with ECHO_ERROR_ABORTED on every rank. From any thread. */
  void abort(const std::string& reason) { check(echo_comm_abort(get(), reason.c_str())); }

  /** Counters since creation. */
  [[nodiscard]] echo_stats_t stats() const {
    echo_stats_t stats = ECHO_STATS_INITIALIZER;
    check(echo_comm_stats(get(), &stats));
    return stats;
  }

  /** The C handle; it stays owned by this object. */
  [[nodiscard]] echo_comm_t get() const noexcept { return comm_.get(); }

 private:
  struct Destroy {
    void operator()(echo_comm_t comm) const noexcept { echo_comm_destroy(comm); }
  };

  explicit Communicator(echo_comm_t comm) noexcept : comm_(comm) {}

  template <Element T>
  void sum(std::span<const T> in, std::span<T> out, const Call& call);

  template <class Span>
  static constexpr echo_dtype_t type_of(const Span& /*elements*/) noexcept {
    return dtype_of<typename Span::value_type>;
  }
  static const std::size_t* pointer(Counts counts) noexcept { return counts.empty() ? nullptr : counts.data(); }
  static echo_feedback_t residuals(const Call& call) noexcept;

  static void same_size(std::size_t in, std::size_t out) {
    if (in == out) return;
    throw Exception(ECHO_ERROR_ARGUMENT, "all_reduce: in has " + std::to_string(in) + " elements, out has " +
                                             std::to_string(out) + "; both must have the same number");
  }

  template <class From, class To>
  struct Operands {
    From in;
    To out;
    std::size_t whole;
  };

  /** The C functions cannot see how long buffers are. */
  template <class From, class To>
  Operands<From, To> parts_of(const char* name, From in, To out, Counts counts, bool whole_in) const {
    static_assert(std::same_as<typename From::value_type, typename To::value_type> && Element<typename To::value_type>);
    const std::size_t whole = whole_in ? in.size() : out.size();
    const std::size_t part = whole_in ? out.size() : in.size();
    const auto ranks = static_cast<std::size_t>(size());
    if (!counts.empty() && counts.size() != ranks) {
      throw Exception(ECHO_ERROR_ARGUMENT, std::string(name) + ": counts has " + std::to_string(counts.size()) +
                                               " entries for " + std::to_string(ranks) + " ranks");
    }
    const std::size_t own = counts.empty() ? whole / ranks : counts[static_cast<std::size_t>(rank())];
    if (part != own) {
      throw Exception(ECHO_ERROR_ARGUMENT, std::string(name) + ": the buffer of this rank's part has " +
                                               std::to_string(part) + " elements, its part of " +
                                               std::to_string(whole) + " has " + std::to_string(own));
    }
    return {in, out, whole};
  }

  std::unique_ptr<struct ::echo_comm_object, Destroy> comm_;
};

// ---- feedback -------------------------------------------------------------------------------------------------------

/** Residuals of one chain of calls whose outputs add up (a residual stream). Moves, does not copy. */
class Feedback {
 public:
  /** For tensors of up to `capacity` elements; starts with a fresh pass. May outlive `comm`, but is then useless. */
  Feedback(const Communicator& comm, std::size_t capacity, echo_store_t store = ECHO_STORE_AUTO) {
    echo_feedback_t feedback = nullptr;
    check(echo_feedback_create(comm.get(), capacity, store, &feedback));
    feedback_.reset(feedback);
  }

  /** Begins a new pass. */
  void reset() { check(echo_feedback_reset(get())); }

  /** Bytes of memory held. */
  [[nodiscard]] std::size_t bytes() const noexcept { return echo_feedback_bytes(get()); }

  /** What the pass owes right now on this rank: largest magnitudes in both residuals. */
  struct Norms {
    float sender_max = 0;
    float owner_max = 0;
  };
  [[nodiscard]] Norms norms() const {
    Norms norms;
    check(echo_feedback_norms(get(), &norms.sender_max, &norms.owner_max));
    return norms;
  }

  /** The pass as bytes, for a checkpoint, and back: see echo_feedback_save() and echo_feedback_load(). */
  [[nodiscard]] std::vector<std::byte> save() const {
    std::size_t bytes = 0;
    check(echo_feedback_save(get(), nullptr, &bytes));
    std::vector<std::byte> state(bytes);
    check(echo_feedback_save(get(), state.data(), &bytes));
    return state;
  }
  void load(std::span<const std::byte> state) { check(echo_feedback_load(get(), state.data(), state.size())); }

  /** The C handle; it stays owned by this object. */
  [[nodiscard]] echo_feedback_t get() const noexcept { return feedback_.get(); }

 private:
  struct Destroy {
    void operator()(echo_feedback_t feedback) const noexcept { echo_feedback_destroy(feedback); }
  };

  std::unique_ptr<struct ::echo_feedback_object, Destroy> feedback_;
};

inline echo_feedback_t Communicator::residuals(const Call& call) noexcept {
  return call.feedback != nullptr ? call.feedback->get() : nullptr;
}

template <Element T>
void Communicator::sum(std::span<const T> in, std::span<T> out, const Call& call) {
  same_size(in.size(), out.size());
  const echo_call_t options = call.to_c();
  check(echo_all_reduce(in.data(), out.data(), in.size(), dtype_of<T>, get(), residuals(call), &options));
}

}  // namespace echo_comm

#endif
