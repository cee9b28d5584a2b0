// Creation: the ranks find each other in a store, prove that they agree, and connect.
//
//   every rank   listens for each peer, then sets join/R: its settings and addresses
//   rank 0       compares them with its own; the first disagreement ends the creation for all (key error)
//   every rank   connects to rank 0, which proves that the job is a live one, and then to all others
//   every rank   tells rank 0 over its connection when it has all of them; when all have, rank 0 says go
//
// A rank that fails sets the key error, with its text. A rank that dies shows by its connections.
#pragma once

#include <functional>
#include <memory>

#include "transport/gloo/gloo.hpp"
#include "transport/gloo/mesh.hpp"

namespace echo_comm::core {

// What a rank other than 0 throws when the job it has joined turns out to be over, or never was alive.
struct JobIsOver {};

struct Meeting {
  const GlooOptions& options;
  std::string place;  // for texts
  Region region;
  NetAddress address;
  Tokens tokens;
  Store& store;
  Deadline deadline;
  std::function<bool()> is_over;  // the job was replaced; asked now and then by ranks other than 0
  std::function<void()> retire;   // all are connected; done by rank 0 before it says so
};

std::unique_ptr<Transport> meet(const Meeting& meeting);

}  // namespace echo_comm::core
