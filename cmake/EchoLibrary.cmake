# The library echo_comm, made of all rooms of src/ (property ECHO_ROOMS). Shared unless ECHO_BUILD_SHARED (which
# follows BUILD_SHARED_LIBS) is OFF.
get_property(echo_rooms GLOBAL PROPERTY ECHO_ROOMS)
set(echo_objects ${echo_rooms})
list(TRANSFORM echo_objects REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>")

if(ECHO_BUILD_SHARED)
  add_library(echo_comm SHARED ${echo_objects})
else()
  add_library(echo_comm STATIC ${echo_objects})
  target_compile_definitions(echo_comm PUBLIC ECHO_COMM_STATIC)
endif()
add_library(echo_comm::echo_comm ALIAS echo_comm)
if(ECHO_GLOO_MODULE) # not linked, but opened when it is used
  add_dependencies(echo_comm ${ECHO_GLOO_MODULE})
endif()

# Objects only: the linker has to be told that they are C++.
set_target_properties(echo_comm PROPERTIES LINKER_LANGUAGE CXX VERSION ${PROJECT_VERSION}
                                           SOVERSION ${PROJECT_VERSION_MAJOR})
target_link_libraries(echo_comm PRIVATE Threads::Threads $<BUILD_INTERFACE:echo_warnings>)
target_sources(
  echo_comm PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/include ${PROJECT_BINARY_DIR}/include
                   FILES ${PROJECT_SOURCE_DIR}/include/echo_comm/echo.h ${PROJECT_SOURCE_DIR}/include/echo_comm/echo.hpp
                         ${PROJECT_BINARY_DIR}/include/echo_comm/version.h)

if(ECHO_BUILD_SHARED)
  set(echo_map ${PROJECT_SOURCE_DIR}/cmake/echo_comm.map)
  target_link_options(echo_comm PRIVATE LINKER:--version-script=${echo_map})
  set_property(TARGET echo_comm APPEND PROPERTY LINK_DEPENDS ${echo_map})
  if(NOT ECHO_SANITIZE) # clang leaves the sanitizer's symbols to the executable
    target_link_options(echo_comm PRIVATE LINKER:-z,defs)
  endif()
endif()
