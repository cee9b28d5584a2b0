/* Echo: tensor-parallel collectives that send 4 bits instead of 16. The C interface, the only ABI promise.
 *
 * A communicator joins `size` ranks. An all-reduce sums a tensor over them, sending small codes instead of
 * 16-bit values. A feedback object remembers what rounding lost and adds it back in the next calls of the same
 * pass; the last call of a pass (flush) pays what is owed. The words are those of docs/numerics.md.
 *
 * Errors: every function that can fail returns an echo_result_t and leaves a one-line text for
 * echo_last_error() of the same thread. Nothing here exits, aborts, prints to stdout or throws.
 *
 * ABI rules: structs start with their own size, are filled by their _INITIALIZER macro and only ever grow at the
 * end; a field that is 0 means "the library decides"; enumerators are never renumbered.
 */
#ifndef ECHO_COMM_ECHO_H
#define ECHO_COMM_ECHO_H

#include <stddef.h>
#include <stdint.h>

#include "echo_comm/version.h"

#if defined(ECHO_COMM_STATIC)
#define ECHO_API
#else
#define ECHO_API __attribute__((visibility("default")))
#endif

/* In C++ the enumerations have a fixed type, so that any number a C caller passes can be looked at and refused. */
#ifdef __cplusplus
#define ECHO_ENUM(name) enum name : int
extern "C" {
#else
#define ECHO_ENUM(name) enum name
#endif

/* ---- results ------------------------------------------------------------------------------------------------- */

typedef ECHO_ENUM(echo_result){
    ECHO_SUCCESS = 0,
    ECHO_ERROR_ARGUMENT = 1, /**< this rank's own arguments are wrong; nothing was sent, the communicator still works */
    ECHO_ERROR_STATE = 2,    /**< wrong order of calls (feedback of another pass, a failed communicator, after fork) */
    ECHO_ERROR_MISMATCH = 3, /**< ranks disagree about a call; the text names both sides; the communicator failed */
    ECHO_ERROR_TIMEOUT = 4,  /**< a rank did not arrive in time; the communicator failed */
    ECHO_ERROR_PEER = 5,     /**< a rank died or left; the communicator failed */
    ECHO_ERROR_ABORTED = 6,  /**< echo_comm_abort() was called on some rank; the communicator failed */
    ECHO_ERROR_SYSTEM = 7,   /**< an operating system call failed, e.g. not enough shared memory */
    ECHO_ERROR_MEMORY = 8,   /**< memory could not be allocated */
    ECHO_ERROR_INTERNAL = 9  /**< a bug in Echo; please report it with the text */
} echo_result_t;

/** A constant one-word name of `result`, "unknown" for any other number. Thread-safe. */
ECHO_API const char* echo_result_string(echo_result_t result);

/** Text of this thread's last failed call, "" if none. Owned by the library, valid until this thread's next call. */
ECHO_API const char* echo_last_error(void);

/** major * 10000 + minor * 100 + patch of the library that is loaded (ECHO_VERSION is that of this header). */
ECHO_API int echo_version(void);

/* ---- types --------------------------------------------------------------------------------------------------- */

/** Element types; the numbers are those of ncclDataType_t. */
typedef ECHO_ENUM(echo_dtype){ECHO_FLOAT16 = 6, ECHO_FLOAT32 = 7, ECHO_BFLOAT16 = 9} echo_dtype_t;

typedef ECHO_ENUM(echo_op){ECHO_SUM = 0, ECHO_AVG = 4} echo_op_t; /* numbers of ncclRedOp_t */

typedef ECHO_ENUM(echo_algorithm){ECHO_ALGORITHM_AUTO = 0, ECHO_ONE_SHOT = 1, ECHO_TWO_SHOT = 2} echo_algorithm_t;

typedef ECHO_ENUM(echo_switch){ECHO_DEFAULT = 0, ECHO_ON = 1, ECHO_OFF = 2} echo_switch_t;

/** How a residual is kept between calls: numerics.md section 8 (also in docs/numerics.md). Memory per value: 4, 1 and 2
 * bytes; for int8 and int16 also 2 bytes a group. ECHO_STORE_AUTO: int8, from the 257th call of a pass on int16. */
typedef ECHO_ENUM(echo_store){ECHO_STORE_AUTO = 0, ECHO_STORE_FP32 = 1, ECHO_STORE_INT8 = 2,
                              ECHO_STORE_INT16 = 3} echo_store_t;

/** `bits` of the exact path: values travel in the tensor's own type, sums are fp32. */
#define ECHO_BITS_EXACT 16

/** Values per group. One scale serves a group; residuals hold this many values per group, padding included. */
#define ECHO_GROUP 64

typedef struct echo_comm_object* echo_comm_t; /* the tag is not echo_comm: that is the C++ namespace */
typedef struct echo_feedback_object* echo_feedback_t;
typedef struct echo_request_object* echo_request_t;

typedef ECHO_ENUM(echo_collective){ECHO_ALL_REDUCE = 1, ECHO_REDUCE_SCATTER = 2, ECHO_ALL_GATHER = 3} echo_collective_t;

/** The ways a call can go. ECHO_PATH_FORWARD: not by Echo at all, but by another engine of the caller. */
typedef ECHO_ENUM(echo_path_kind){ECHO_PATH_FORWARD = 1, ECHO_PATH_EXACT = 2, ECHO_PATH_CODED = 3} echo_path_kind_t;

/** Severity of a log line. */
typedef ECHO_ENUM(echo_log_level){ECHO_LOG_INFO = 0, ECHO_LOG_WARNING = 1} echo_log_level_t;

/** Receives log lines of one communicator, from the thread that makes the call. Must not call back into Echo. */
typedef void (*echo_log_fn)(echo_log_level_t level, const char* line, void* context);

/* ---- communicator -------------------------------------------------------------------------------------------- */

/** Settings of a communicator. Those marked (all) must be equal on all ranks, else creation fails on every rank. */
typedef struct echo_config {
  size_t size;                   /**< sizeof(echo_config_t), set by the initializer */
  int64_t timeout_ms;            /**< longest wait of creation and of any call; 0: ECHO_TIMEOUT_MS or 30,000 */
  int64_t slot_bytes;            /**< (all) bytes of one mailbox slot; 0: ECHO_SHM_SLOT_BYTES or by world size */
  echo_switch_t batch_invariant; /**< (all) a token's result depends on that token's values alone; default off */
  echo_log_fn log;               /**< NULL: nothing is logged, or to stderr when ECHO_DEBUG=1 */
  void* log_context;             /**< handed to `log`; must outlive the communicator */
  int threads;                   /**< threads that code large calls, the caller's included, 1 to 256; same bits for any.
                                    0: ECHO_THREADS, or the usable processors shared among the ranks of this host */
  const char* table;  /**< rows of the table of choices (docs/tuning.md), or "@FILE" with them; NULL: ECHO_TABLE,
                                    or the built-in rules. Rank 0's counts, the others' are ignored with a warning */
  echo_switch_t tune; /**< measure the table at creation, in under 3 s; default ECHO_TUNE or off; rank 0's counts */
} echo_config_t;
#define ECHO_CONFIG_INITIALIZER \
  { sizeof(echo_config_t), 0, 0, ECHO_DEFAULT, NULL, NULL, 0, NULL, ECHO_DEFAULT }

/** Joins a communicator named by a transport URL; returns when all ranks joined.
 *
 * url      "shm://NAME?rank=R&size=W": W processes on one host, W from 1 to 64, that agree on NAME
 *          (1 to 64 characters of A-Z a-z 0-9 . _ -). No server, no files: see docs/transports.md.
 *          "gloo+file:///DIR?rank=R&size=W[&iface=NAME|&host=ADDRESS]": processes of any hosts, over TCP. DIR is
 *          absolute, exists and is seen by all ranks; nothing is decoded, so no spaces, % or #. One job at a time may
 *          gather in it; once its ranks are connected it is free again. iface or host: the address to listen on, by
 *          default that of the host name unless loopback, else of the first interface that is not. Needs
 *          libecho_comm_gloo.so beside the library and libgloo, else ECHO_ERROR_SYSTEM. Not encrypted: use a network
 *          that you trust.
 * config   NULL for the defaults. Copied.
 * comm     receives the communicator; owned by the caller, who gives it to echo_comm_destroy().
 *
 * Fails with ECHO_ERROR_STATE when NAME is in use by a live job, ECHO_ERROR_MISMATCH when ranks disagree on size or
 * settings, ECHO_ERROR_TIMEOUT when ranks are missing (the text names them). Thread-safe. */
ECHO_API echo_result_t echo_comm_create(const char* url, const echo_config_t* config, echo_comm_t* comm);

/** Creates all `size` ranks of a communicator inside this process: ranks are threads (as ncclCommInitAll).
 * comms receives `size` handles, rank order; each is then used by one thread at a time and destroyed by itself. */
ECHO_API echo_result_t echo_comm_create_all(int size, const echo_config_t* config, echo_comm_t* comms);

/** Rank in [0, size), number of ranks, and name of the transport ("shm", "inproc", "gloo"). comm must not be NULL; a NULL
 * gives -1, -1 and "". Thread-safe. */
ECHO_API int echo_comm_rank(echo_comm_t comm);
ECHO_API int echo_comm_size(echo_comm_t comm);
ECHO_API const char* echo_comm_transport(echo_comm_t comm);

/** Makes calls in progress and all later ones fail with ECHO_ERROR_ABORTED on every rank. From any thread. */
ECHO_API echo_result_t echo_comm_abort(echo_comm_t comm, const char* reason);

/** Frees the communicator; peers that still wait for this rank get ECHO_ERROR_PEER. Never communicates, never
 * waits. NULL is allowed. No call may be in progress on it. Its feedback objects may be destroyed before or after. */
ECHO_API void echo_comm_destroy(echo_comm_t comm);

/** How a call goes and why. */
typedef struct echo_path {
  size_t size;                /**< sizeof(echo_path_t), set by the initializer */
  echo_path_kind_t kind;      /**< coded, exact or (echo_comm_choose) forward */
  echo_algorithm_t algorithm; /**< of an all-reduce; else ECHO_ALGORITHM_AUTO */
  int bits;                   /**< ECHO_BITS_EXACT on the exact path */
  int64_t segment_values;     /**< values of one segment; the slots of the transport may hold fewer */
  int depth;                  /**< segments sent ahead */
  const char* reason;         /**< why this kind; a constant string */
} echo_path_t;
#define ECHO_PATH_INITIALIZER \
  { sizeof(echo_path_t), ECHO_PATH_EXACT, ECHO_ALGORITHM_AUTO, 0, 0, 0, NULL }

/** Path of the last collective that succeeded on this communicator; ECHO_ERROR_STATE before the first. Thread-safe. */
ECHO_API echo_result_t echo_comm_last_path(echo_comm_t comm, echo_path_t* path);

/** Path that such a call would take, without making it: `count` elements of the whole tensor, with residuals or without
 * (0). Equal on all ranks. A table may say ECHO_PATH_FORWARD: the collectives of this interface then take the exact path,
 * a caller that has another engine uses that. */
struct echo_call;
ECHO_API echo_result_t echo_comm_choose(echo_comm_t comm, echo_collective_t collective, size_t count, int has_feedback,
                                        const struct echo_call* call, echo_path_t* path);

/** The table of choices in use as text, one row a line; "" when the built-in rules alone count. Valid until the next call
 * with this communicator; not thread-safe. */
ECHO_API const char* echo_comm_table(echo_comm_t comm);

/** Counters since creation; they only grow. */
typedef struct echo_stats {
  size_t size;              /**< sizeof(echo_stats_t), set by the initializer */
  uint64_t calls;           /**< all-reduces, reduce-scatters and all-gathers that succeeded = coded + exact + passed */
  uint64_t coded_calls;     /**< sent with fewer bits */
  uint64_t exact_calls;     /**< exact path: ECHO_BITS_EXACT, or the table said so */
  uint64_t passed_calls;    /**< world size 1: input handed through */
  uint64_t one_shot_calls;  /**< of the coded and exact calls, those that went one-shot */
  uint64_t flush_calls;     /**< last calls of passes */
  uint64_t logical_bytes;   /**< sum of count * element size */
  uint64_t payload_bytes;   /**< bytes this rank sent to others: codes, scales and headers */
  uint64_t messages;        /**< messages this rank sent (one to everybody counts size - 1) */
  uint64_t poisoned_groups; /**< groups that this rank delivered as NaN */
  uint64_t waits;           /**< waits for a peer that were not satisfied at once */
  uint64_t wait_ns;         /**< time spent in them */
  uint64_t shm_bytes;       /**< size of the shared region of this communicator (shm, inproc) */
  uint64_t threads;         /**< threads that code large calls; fewer than asked for if they could not be started */
  uint64_t table_exact_calls; /**< of the exact calls, those that the table decided */
  uint64_t control_calls;     /**< broadcasts and barriers; not among `calls` */
} echo_stats_t;
#define ECHO_STATS_INITIALIZER \
  { sizeof(echo_stats_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

ECHO_API echo_result_t echo_comm_stats(echo_comm_t comm, echo_stats_t* stats);

/* ---- feedback ------------------------------------------------------------------------------------------------ */

/** Creates the residuals (zero) of one pass at a time, for tensors of up to `capacity` elements, kept as `store` says.
 * Memory: one value per element for the sender residual plus 1/size of it for the owner residual.
 * One feedback object serves one chain of calls whose outputs add up with equal weight (a residual stream). */
ECHO_API echo_result_t echo_feedback_create(echo_comm_t comm, size_t capacity, echo_store_t store,
                                            echo_feedback_t* feedback);

/** Begins a new pass: residuals become zero, the next call fixes count, row length and rotation of the pass. */
ECHO_API echo_result_t echo_feedback_reset(echo_feedback_t feedback);

/** Bytes of memory held. 0 for NULL. */
ECHO_API size_t echo_feedback_bytes(echo_feedback_t feedback);

/** What the pass owes right now on this rank: largest magnitude in the sender and in the owner residual. */
ECHO_API echo_result_t echo_feedback_norms(echo_feedback_t feedback, float* sender_max, float* owner_max);

/** Copies the pass (residuals, shape, number of calls) to memory, for a checkpoint. Between calls.
 * state   NULL: only *bytes is set
 * bytes   in: room in `state`; out: bytes of the state. Too little room is ECHO_ERROR_ARGUMENT, and *bytes is set */
ECHO_API echo_result_t echo_feedback_save(echo_feedback_t feedback, void* state, size_t* bytes);

/** Goes on with a pass that echo_feedback_save() saved on the same rank of a communicator of the same size, in a feedback
 * of the same store and at least that capacity. A state that does not fit or is damaged is ECHO_ERROR_ARGUMENT, and
 * nothing is changed. Every rank loads what it saved at the same point. */
ECHO_API echo_result_t echo_feedback_load(echo_feedback_t feedback, const void* state, size_t bytes);

/** Frees it. NULL is allowed. */
ECHO_API void echo_feedback_destroy(echo_feedback_t feedback);

/* ---- collectives --------------------------------------------------------------------------------------------- */

/** Options of one call; equal on all ranks. */
typedef struct echo_call {
  size_t size;                /**< sizeof(echo_call_t), set by the initializer */
  echo_op_t op;               /**< ECHO_SUM (0) or ECHO_AVG */
  int bits;                   /**< 3, 4, 5, 6, 8 or ECHO_BITS_EXACT; 0: by the table, else 4, or 8 when flush is set */
  int flush;                  /**< 1: last call of the pass; what is owed is paid, residuals are dropped after it */
  echo_algorithm_t algorithm; /**< 0: by size and world size; world size 2 is one-shot at every size */
  echo_switch_t rotation;     /**< default on */
  size_t row_length;          /**< elements of a row, groups start anew at each row; divides count; 0: one row */
} echo_call_t;
#define ECHO_CALL_INITIALIZER \
  { sizeof(echo_call_t), ECHO_SUM, 0, 0, ECHO_ALGORITHM_AUTO, ECHO_DEFAULT, 0 }

/* What holds for all of them:
 *
 * Buffers are host memory, aligned to the element size; NULL is allowed where there are no elements. They may be used in
 * place as each function says; any other overlap is an error.
 * feedback   residuals of the current pass, or NULL for none. Must have been created for >= count elements with this
 *            communicator. Within a pass the count, the parts, the row length and the rotation may not change.
 * call       options of this call, or NULL for the defaults (SUM, 4 bits, no flush).
 *
 * Collective: every rank calls with the same counts, dtype, options and feedback presence, else all ranks get
 * ECHO_ERROR_MISMATCH and `out` is unspecified. A call blocks at most the communicator's timeout.
 * Thread-safe across communicators, not within one.
 * Formulas: numerics.md sections 2 and 3 (also in docs/numerics.md). */

/** Sums `count` elements over all ranks; every rank gets the same bytes. in, out: count elements; equal pointers mean in
 * place. */
ECHO_API echo_result_t echo_all_reduce(const void* in, void* out, size_t count, echo_dtype_t dtype, echo_comm_t comm,
                                       echo_feedback_t feedback, const echo_call_t* call);

/** Sums over all ranks; each rank gets its own part of the sum.
 * count     elements of the whole tensor `in`
 * counts    elements of each rank's part, in rank order, adding up to count; NULL: equal parts, size divides count
 * out       this rank's part; in place: out == in + the counts of the ranks before
 * Groups (and rows) start anew at each part: the row length divides every part. Each value is rounded once. */
ECHO_API echo_result_t echo_reduce_scatter(const void* in, void* out, size_t count, const size_t* counts,
                                           echo_dtype_t dtype, echo_comm_t comm, echo_feedback_t feedback,
                                           const echo_call_t* call);

/** Puts the parts of all ranks together; every rank gets the same bytes, its own part too: rounded once.
 * count, counts   as for echo_reduce_scatter()
 * in              this rank's part; in place: in == out + the counts of the ranks before
 * out             the whole tensor
 * No residuals: gathered values do not add up to a stream. */
ECHO_API echo_result_t echo_all_gather(const void* in, void* out, size_t count, const size_t* counts,
                                       echo_dtype_t dtype, echo_comm_t comm, const echo_call_t* call);

/** Copies `count` elements of rank `root` to all, bit for bit. in: only read on the root, may equal out. */
ECHO_API echo_result_t echo_broadcast(const void* in, void* out, size_t count, echo_dtype_t dtype, int root,
                                      echo_comm_t comm);

/** Returns when every rank has called it. */
ECHO_API echo_result_t echo_barrier(echo_comm_t comm);

/* ---- started calls ------------------------------------------------------------------------------------------- */
/* The same collectives without waiting for them: a thread of the communicator works them off in the order they were
 * started, the same on all ranks. Buffers and residuals belong to the call until echo_wait() returned. A blocking call
 * waits for the started ones before it. Arguments that are wrong are refused at once, and nothing is started; what goes
 * wrong later is the result of echo_wait(). The timeout of a call begins when its turn comes.
 * request   receives the started call; give it to echo_wait(), once, even if the communicator was destroyed since (the
 *           calls under way then end with ECHO_ERROR_ABORTED). */

ECHO_API echo_result_t echo_all_reduce_start(const void* in, void* out, size_t count, echo_dtype_t dtype,
                                             echo_comm_t comm, echo_feedback_t feedback, const echo_call_t* call,
                                             echo_request_t* request);
ECHO_API echo_result_t echo_reduce_scatter_start(const void* in, void* out, size_t count, const size_t* counts,
                                                 echo_dtype_t dtype, echo_comm_t comm, echo_feedback_t feedback,
                                                 const echo_call_t* call, echo_request_t* request);
ECHO_API echo_result_t echo_all_gather_start(const void* in, void* out, size_t count, const size_t* counts,
                                             echo_dtype_t dtype, echo_comm_t comm, const echo_call_t* call,
                                             echo_request_t* request);

/** *done becomes 1 when the call has ended, well or not, else 0. Never waits. Thread-safe. */
ECHO_API echo_result_t echo_test(echo_request_t request, int* done);

/** Waits for the call, returns its result (with its text for echo_last_error()) and frees the request. */
ECHO_API echo_result_t echo_wait(echo_request_t request);

/* ---- selection for bindings ---------------------------------------------------------------------------------- */

/** Says which algorithm ECHO_ALGORITHM_AUTO takes for such a call, for bindings that move the bytes themselves. A
 * function of its arguments alone, so all ranks get the same. bits: 0 means 4; size: number of ranks, 1 to 64. */
ECHO_API echo_result_t echo_select(size_t count, size_t row_length, int bits, int size, int batch_invariant,
                                   echo_algorithm_t* algorithm);

/* ---- codec --------------------------------------------------------------------------------------------------- */
/* For bindings that move the bytes themselves. The functions are pure: no state but the residuals they are given.
 * Thread-safe as long as no two calls share a residual or an output. */

/** Which groups of which tensor a codec call works on. */
typedef struct echo_range {
  size_t size;            /**< sizeof(echo_range_t), set by the initializer */
  echo_dtype_t dtype;     /**< element type of the tensor */
  size_t count;           /**< elements of the whole tensor */
  size_t row_length;      /**< as in echo_call_t */
  int bits;               /**< 3, 4, 5, 6, 8 or ECHO_BITS_EXACT; 0: 4 */
  echo_switch_t rotation; /**< default on */
  int64_t group_begin;    /**< groups [group_begin, group_end) of echo_groups(count, row_length) */
  int64_t group_end;
  int64_t part_begin; /**< the call works on groups [part_begin, part_end) of the range alone, so that a caller can */
  int64_t part_end;   /**< divide it among threads; buffers are those of the range. Both 0: on the whole range */
  const char* codec;  /**< a name that echo_codec_name() gives, or NULL: the codec in use */
} echo_range_t;
#define ECHO_RANGE_INITIALIZER \
  { sizeof(echo_range_t), ECHO_FLOAT32, 0, 0, 0, ECHO_DEFAULT, 0, 0, 0, 0, NULL }

/** Residuals of a rank, rotated domain, updated by the call. Each is echo_residual_bytes() long: 64 values for each group
 * (float, int8_t or int16_t, element order), then, for int8 and int16, one scale for each group (bf16). Bytes of zero
 * mean that nothing is owed. Aligned to 4 bytes for fp32, else to 2. */
typedef struct echo_residuals {
  size_t size;         /**< sizeof(echo_residuals_t), set by the initializer */
  echo_store_t store;  /**< how both are kept; ECHO_STORE_AUTO is ECHO_STORE_FP32 here */
  void* sender;        /**< for all groups of the tensor, or NULL: no sender residual */
  void* owner;         /**< for groups [owner_begin, owner_end), or NULL: no owner residual */
  int64_t owner_begin; /**< first group of this rank's chunk */
  int64_t owner_end;
} echo_residuals_t;
#define ECHO_RESIDUALS_INITIALIZER \
  { sizeof(echo_residuals_t), ECHO_STORE_AUTO, NULL, NULL, 0, 0 }

/** Bytes of a residual of `groups` groups. -1 when groups is negative or store unknown. */
ECHO_API int64_t echo_residual_bytes(int64_t groups, echo_store_t store);

/** Names of the codecs that this processor can run: the fastest first, then "reference" (scalar), then "EMU128" (emulated
 * vectors, for tests; where Highway was there at build time); NULL past the end. All give the same bits. Constant
 * strings; thread-safe. */
ECHO_API const char* echo_codec_name(int index);

/** Name of the codec in use: the fastest, or the one named by the variable ECHO_CODEC when the process first used Echo.
 * "" when ECHO_CODEC names none of them (every call then fails and says so). */
ECHO_API const char* echo_active_codec(void);

/** Number of groups of a tensor: rows * ceil(row_length / 64). -1 when row_length does not divide count. */
ECHO_API int64_t echo_groups(size_t count, size_t row_length);

/** Chunk of `rank`: groups [rank*N/size, (rank+1)*N/size) of N. */
ECHO_API echo_result_t echo_chunk(int64_t groups, int size, int rank, int64_t* group_begin, int64_t* group_end);

/** Bytes that echo_encode() writes for this range: all codes, then all scales (bf16); exact: the elements. */
ECHO_API echo_result_t echo_encoded_size(const echo_range_t* range, size_t* bytes);

/** Encodes the range of the tensor `in` (its first element, whole tensor). residuals may be NULL. The owner residual,
 * if given, is added on its groups and becomes 0 (one-shot). poisoned, if not NULL, is increased. */
ECHO_API echo_result_t echo_encode(const echo_range_t* range, const void* in, const echo_residuals_t* residuals,
                                   void* encoded, uint64_t* poisoned);

/** Sums what `size` ranks sent for this range, in rank order in fp32, and encodes the sum (two-shot, owner's part).
 * encoded[r] holds rank r's bytes; encoded[rank] is not read: the own addend comes unrounded from `in` (or, with
 * batch_invariant != 0, coded). The sender residual of the range becomes 0, the owner residual is added and renewed.
 * divisor: 1 for a sum, size for an average; the same value goes to echo_reduce() and echo_decode(), and is applied
 * once: here on the exact path (before the sum is rounded to the type), there otherwise. */
ECHO_API echo_result_t echo_reduce(const echo_range_t* range, const void* const* encoded, int size, int rank,
                                   const void* in, const echo_residuals_t* residuals, int batch_invariant, int divisor,
                                   void* out_encoded, uint64_t* poisoned);

/** Decodes the range into the tensor `out` (its first element). parts = 1: two-shot's sum; parts = size: one-shot,
 * summed in rank order. divisor: as for echo_reduce(). Residuals of poisoned groups become 0.
 * add: 0 overwrites `out`; 1 adds to it, out = round(out + decoded) with one fp32 addition and one rounding to the type
 * (poisoned groups become NaN all the same). */
ECHO_API echo_result_t echo_decode(const echo_range_t* range, const void* const* encoded, int parts, int divisor,
                                   int add, const echo_residuals_t* residuals, void* out, uint64_t* poisoned);

#ifdef __cplusplus
}
#endif

#endif
