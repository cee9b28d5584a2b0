/* The header is C: a communicator of two ranks inside this process, used from a C file. */
#include "echo_comm/echo.h"

int echo_c_interface_test(void) {
  echo_config_t config = ECHO_CONFIG_INITIALIZER;
  echo_call_t call = ECHO_CALL_INITIALIZER;
  echo_stats_t stats = ECHO_STATS_INITIALIZER;
  echo_range_t range = ECHO_RANGE_INITIALIZER;
  echo_comm_t comm = NULL;
  float values[3] = {1.0F, 2.0F, 3.0F};
  size_t bytes = 0;
  if (echo_comm_create_all(1, &config, &comm) != ECHO_SUCCESS) return 1;
  if (echo_all_reduce(values, values, 3, ECHO_FLOAT32, comm, NULL, &call) != ECHO_SUCCESS) return 2;
  if (values[2] != 3.0F) return 3;
  if (echo_comm_stats(comm, &stats) != ECHO_SUCCESS || stats.passed_calls != 1) return 4;
  range.count = 65;
  range.group_end = 2;
  if (echo_encoded_size(&range, &bytes) != ECHO_SUCCESS || bytes != 2 * 34) return 5;
  echo_comm_destroy(comm);
  return 0;
}
