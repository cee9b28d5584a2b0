#include "api/handles.hpp"

namespace echo_comm::core {
namespace {

static_assert(static_cast<int>(Path::kForward) == ECHO_PATH_FORWARD &&
              static_cast<int>(Path::kExact) == ECHO_PATH_EXACT && static_cast<int>(Path::kCoded) == ECHO_PATH_CODED);

echo_algorithm_t algorithm_of(Kind kind) {
  switch (kind) {
    case Kind::kOneShot: return ECHO_ONE_SHOT;
    case Kind::kTwoShot: return ECHO_TWO_SHOT;
    default: return ECHO_ALGORITHM_AUTO;
  }
}

void write_path(const Choice& choice, echo_path_t* path) {
  require(path != nullptr && path->size >= sizeof(std::size_t), ErrorCode::kArgument,
          "path is NULL or not filled by ECHO_PATH_INITIALIZER");
  echo_path_t all ECHO_PATH_INITIALIZER;
  all.kind = static_cast<echo_path_kind_t>(choice.path);
  all.algorithm = algorithm_of(choice.kind);
  all.bits = choice.format.bits;
  all.segment_values = choice.segment_groups * kGroup;
  all.depth = choice.depth;
  all.reason = choice.reason;
  const std::size_t size = std::min(path->size, sizeof all);
  all.size = path->size;
  __builtin_memcpy(path, &all, size);
}

Collective read_collective(echo_collective_t collective) {
  switch (collective) {
    case ECHO_ALL_REDUCE: return Collective::kAllReduce;
    case ECHO_REDUCE_SCATTER: return Collective::kReduceScatter;
    case ECHO_ALL_GATHER: return Collective::kAllGather;
  }
  fail(ErrorCode::kArgument, "collective: ", static_cast<int>(collective),
       " is not ECHO_ALL_REDUCE (1), ECHO_REDUCE_SCATTER (2) or ECHO_ALL_GATHER (3)");
}

}  // namespace
}  // namespace echo_comm::core

echo_result_t echo_comm_last_path(echo_comm_t comm, echo_path_t* path) {
  using namespace echo_comm::core;
  return guarded([&] {
    require(comm != nullptr, ErrorCode::kArgument, "comm is NULL");
    const std::optional<Choice> last = comm->communicator.last_choice();
    require(last.has_value(), ErrorCode::kState, "no call has ended well yet");
    write_path(*last, path);
  });
}

echo_result_t echo_comm_choose(echo_comm_t comm, echo_collective_t collective, size_t count, int has_feedback,
                               const echo_call_t* call, echo_path_t* path) {
  using namespace echo_comm::core;
  return guarded([&] {
    require(comm != nullptr, ErrorCode::kArgument, "comm is NULL");
    Wish wish = read_wish(call);
    wish.collective = read_collective(collective);
    wish.count = read_count(count, "count");
    wish.feedback = has_feedback != 0;
    write_path(comm->communicator.choose(wish), path);
  });
}

const char* echo_comm_table(echo_comm_t comm) {
  using namespace echo_comm::core;
  if (comm == nullptr) return "";
  guarded([&] { comm->table_text = comm->communicator.table().to_text(); });
  return comm->table_text.c_str();
}
