# Targets that others are made of: flags, and echo_room(), one object library per room of src/.
find_package(Threads REQUIRED)

configure_file(${CMAKE_CURRENT_SOURCE_DIR}/cmake/version.h.in ${CMAKE_CURRENT_BINARY_DIR}/include/echo_comm/version.h
               @ONLY)

# Flags of everything that is built here, examples included. -ffp-contract=off: the specification rounds products
# before adding (numerics.md section 2).
add_library(echo_warnings INTERFACE)
target_compile_features(echo_warnings INTERFACE cxx_std_20)
target_compile_options(echo_warnings INTERFACE -Wall -Wextra $<$<BOOL:${ECHO_WERROR}>:-Werror> -ffp-contract=off)
if(ECHO_SANITIZE)
  target_compile_options(echo_warnings INTERFACE -fsanitize=${ECHO_SANITIZE} -fno-sanitize-recover=all
                                                 -fno-omit-frame-pointer)
  target_link_options(echo_warnings INTERFACE -fsanitize=${ECHO_SANITIZE})
endif()

# The same for code that may see the headers of src/: rooms, the test harness, tests.
add_library(echo_flags INTERFACE)
target_link_libraries(echo_flags INTERFACE echo_warnings)
target_include_directories(echo_flags INTERFACE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include
                                                ${PROJECT_BINARY_DIR}/include)
if(NOT ECHO_BUILD_SHARED)
  target_compile_definitions(echo_flags INTERFACE ECHO_COMM_STATIC)
endif()

# echo_room(NAME SOURCES <file>...): one object library per room of src/. A room sees the headers of the whole src/
# tree; tests/rooms checks that it includes only the rooms it may use.
function(echo_room name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES")
  add_library(echo_${name} OBJECT ${arg_SOURCES})
  set_target_properties(echo_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden
                                                C_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_link_libraries(echo_${name} PRIVATE echo_flags Threads::Threads)
  set_property(GLOBAL APPEND PROPERTY ECHO_ROOMS echo_${name})
endfunction()
