// Two ranks as threads sum a vector through the C++ interface: with 4 bits, in bf16, and an error as an exception.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <echo_comm/echo.hpp>
#include <stdexcept>
#include <thread>
#include <vector>

namespace {

void expect(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(what);
}

void run_rank(echo_comm::Communicator& comm) {
  expect(comm.size() == 2 && comm.transport() == "inproc", "two ranks of this process");

  std::vector<float> data(256, 1.0F + static_cast<float>(comm.rank()));
  echo_comm::Feedback feedback(comm, data.size());
  comm.all_reduce(data, {.flush = true, .feedback = &feedback});
  for (const float value : data) expect(std::abs(value - 3.0F) < 0.1F, "1 + 2 is about 3");

  std::vector<std::uint16_t> ones(256, 0x3F80);  // 1 in bf16
  comm.all_reduce(echo_comm::view_as<echo_comm::Bfloat16>(ones), {.bits = ECHO_BITS_EXACT});
  for (const std::uint16_t bits : ones) expect(bits == 0x4000, "1 + 1 is 2");

  try {
    comm.all_reduce(data, {.bits = 7});
  } catch (const echo_comm::Exception& error) {
    expect(error.code() == ECHO_ERROR_ARGUMENT, error.what());
    return;
  }
  expect(false, "7 bits do not exist");
}

}  // namespace

int main() try {
  std::vector<echo_comm::Communicator> comms = echo_comm::Communicator::create_all(2);
  std::exception_ptr failure;
  std::thread other([&] {
    try {
      run_rank(comms[1]);
    } catch (...) {
      failure = std::current_exception();
    }
  });
  try {
    run_rank(comms[0]);
  } catch (...) {
    other.join();
    throw;
  }
  other.join();
  if (failure) std::rethrow_exception(failure);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
