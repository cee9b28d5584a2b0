/* Two ranks as threads sum a vector through the C interface. */
#include <echo_comm/echo.h>
#include <pthread.h>
#include <stdio.h>

#define COUNT 256

static void* run_rank(void* argument) {
  echo_comm_t comm = argument;
  float data[COUNT];
  for (int i = 0; i < COUNT; ++i) data[i] = (float)(i + echo_comm_rank(comm));

  echo_call_t call = ECHO_CALL_INITIALIZER;
  call.bits = ECHO_BITS_EXACT;
  if (echo_all_reduce(data, data, COUNT, ECHO_FLOAT32, comm, NULL, &call) != ECHO_SUCCESS) {
    fprintf(stderr, "echo_all_reduce: %s\n", echo_last_error());
    return comm;
  }
  for (int i = 0; i < COUNT; ++i) {
    if (data[i] != (float)(2 * i + 1)) {
      fprintf(stderr, "element %d is %g, not %d\n", i, data[i], 2 * i + 1);
      return comm;
    }
  }
  return NULL;
}

int main(void) {
  if (echo_version() != ECHO_VERSION) {
    fprintf(stderr, "library %d, header %d\n", echo_version(), ECHO_VERSION);
    return 1;
  }
  echo_comm_t comms[2];
  if (echo_comm_create_all(2, NULL, comms) != ECHO_SUCCESS) {
    fprintf(stderr, "echo_comm_create_all: %s\n", echo_last_error());
    return 1;
  }
  pthread_t threads[2];
  void* failed[2] = {NULL, NULL};
  for (int rank = 0; rank < 2; ++rank) pthread_create(&threads[rank], NULL, run_rank, comms[rank]);
  for (int rank = 0; rank < 2; ++rank) pthread_join(threads[rank], &failed[rank]);
  for (int rank = 0; rank < 2; ++rank) echo_comm_destroy(comms[rank]);
  return failed[0] != NULL || failed[1] != NULL;
}
