/* Lesson 1: an all-reduce between processes, in C.
 *
 *   01_all_reduce                   starts two ranks by itself (fork) and waits for them
 *   01_all_reduce RANK SIZE NAME    one rank of a job of SIZE ranks on this host; start each in a shell of its own
 *
 * Every rank brings one vector and gets the sum of all of them, once exactly and once with 4 bits a value. All ranks
 * hold the same bytes afterwards, in both cases.
 */
#include <echo_comm/echo.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT 4096

/* Echo never exits or prints by itself: the caller decides what an error means. */
static int report(const char* what, echo_result_t result) {
  fprintf(stderr, "%s: %s: %s\n", what, echo_result_string(result), echo_last_error());
  return 1;
}

static int run_rank(int rank, int size, const char* name) {
  char url[160];
  snprintf(url, sizeof url, "shm://%s?rank=%d&size=%d", name, rank, size);

  echo_config_t config = ECHO_CONFIG_INITIALIZER;
  config.timeout_ms = 20000; /* a rank that never comes is an error after 20 seconds, not a hang */

  echo_comm_t comm = NULL;
  echo_result_t result = echo_comm_create(url, &config, &comm);
  if (result != ECHO_SUCCESS) return report("echo_comm_create", result);

  static float in[COUNT], exact[COUNT], coded[COUNT];
  for (int i = 0; i < COUNT; ++i) in[i] = sinf(0.01f * (float)i) + (float)rank;

  /* The exact path: values travel as they are. */
  echo_call_t call = ECHO_CALL_INITIALIZER;
  call.bits = ECHO_BITS_EXACT;
  result = echo_all_reduce(in, exact, COUNT, ECHO_FLOAT32, comm, NULL, &call);

  /* The default: 4 bits a value, one scale for 64 of them. */
  if (result == ECHO_SUCCESS) result = echo_all_reduce(in, coded, COUNT, ECHO_FLOAT32, comm, NULL, NULL);

  echo_stats_t stats = ECHO_STATS_INITIALIZER;
  if (result == ECHO_SUCCESS) result = echo_comm_stats(comm, &stats);

  int failed = 0;
  if (result != ECHO_SUCCESS) {
    failed = report("echo_all_reduce", result);
  } else {
    double error = 0, norm = 0;
    for (int i = 0; i < COUNT; ++i) {
      error += (coded[i] - exact[i]) * (coded[i] - exact[i]);
      norm += exact[i] * exact[i];
    }
    const double relative = sqrt(error / norm);
    printf("rank %d of %d: exact sum[1] = %.4f, coded sum[1] = %.4f, relative error %.3f, %llu bytes sent\n", rank,
           size, exact[1], coded[1], relative, (unsigned long long)stats.payload_bytes);
    failed = relative > 0.2;
  }
  echo_comm_destroy(comm);
  return failed;
}

int main(int argc, char** argv) {
  if (argc == 4) return run_rank(atoi(argv[1]), atoi(argv[2]), argv[3]);
  if (argc != 1) {
    fprintf(stderr, "usage: %s [RANK SIZE NAME]\n", argv[0]);
    return 2;
  }

  char name[64];
  snprintf(name, sizeof name, "lesson1-%ld", (long)getpid()); /* no other job has this name */
  fflush(stdout);
  /* Fork before any communicator exists: one belongs to the process that created it. */
  for (int rank = 0; rank < 2; ++rank) {
    const pid_t child = fork();
    if (child < 0) {
      perror("fork");
      return 1;
    }
    if (child == 0) return run_rank(rank, 2, name);
  }
  int failed = 0;
  for (int rank = 0; rank < 2; ++rank) {
    int status = 0;
    if (wait(&status) < 0 || status != 0) failed = 1;
  }
  return failed;
}
