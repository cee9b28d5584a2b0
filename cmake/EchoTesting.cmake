# echo_test(NAME <name> SOURCES <file>... [ROOMS <room>...|all] [LIBS <target>...] [LABELS <label>...] [TIMEOUT <s>])
#
# A GoogleTest executable, each of whose tests becomes a test of CTest named <name>.<suite>.<test>.
#   ROOMS    rooms of src/ whose objects are linked in, so that tests see what the library hides; `all` takes every one
#   LIBS     further libraries, e.g. echo_comm::echo_comm for a test of the public interface alone
#   LABELS   what the test needs (gpu, mpi, netns) or is (slow)
#   TIMEOUT  seconds for one test, 120 if not given; sanitizers get three times as much
if(CMAKE_CROSSCOMPILING) # the installed library is for this machine; its sources come with it (Debian: googletest)
  set(INSTALL_GTEST OFF)
  add_subdirectory(/usr/src/googletest ${PROJECT_BINARY_DIR}/googletest EXCLUDE_FROM_ALL SYSTEM)
else()
  find_package(GTest REQUIRED)
endif()
include(GoogleTest)

function(echo_test)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME;TIMEOUT" "SOURCES;ROOMS;LIBS;LABELS")
  if(NOT arg_NAME OR NOT arg_SOURCES OR arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "echo_test: NAME and SOURCES are needed; not understood: '${arg_UNPARSED_ARGUMENTS}'")
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  if(ECHO_SANITIZE)
    math(EXPR arg_TIMEOUT "3 * ${arg_TIMEOUT}")
  endif()

  set(target echo_test_${arg_NAME})
  add_executable(${target} ${arg_SOURCES})
  target_link_libraries(${target} PRIVATE echo_flags Threads::Threads ${arg_LIBS} GTest::gmock GTest::gtest_main)
  if(TARGET echo_testing)
    target_link_libraries(${target} PRIVATE echo_testing)
  endif()
  if("all" IN_LIST arg_ROOMS)
    get_property(rooms GLOBAL PROPERTY ECHO_ROOMS)
  else()
    list(TRANSFORM arg_ROOMS PREPEND echo_ OUTPUT_VARIABLE rooms)
  endif()
  foreach(room IN LISTS rooms)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${room}>)
  endforeach()

  # Found when CTest starts, not while building: a cross-compiled or sanitized test is not run by the build.
  set(properties TIMEOUT ${arg_TIMEOUT})
  if(arg_LABELS)
    list(JOIN arg_LABELS "\\;" labels)
    list(APPEND properties LABELS "${labels}")
  endif()
  gtest_discover_tests(${target} TEST_PREFIX ${arg_NAME}. DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
                       PROPERTIES ${properties})
endfunction()
