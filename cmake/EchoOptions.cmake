# Options. Everything that a consumer of the library does not need is off unless Echo is the top-level project.
option(ECHO_BUILD_TESTS "Build the C++ tests" ${PROJECT_IS_TOP_LEVEL})
option(ECHO_BUILD_EXAMPLES "Build the examples" ${PROJECT_IS_TOP_LEVEL})
option(ECHO_BUILD_TOOLS "Build the tools echo-perf and echo-info" ${PROJECT_IS_TOP_LEVEL})
option(ECHO_BUILD_PYTHON "Build the PyTorch operators (needs torch; set Torch_DIR or use pip install .)" OFF)
option(ECHO_INSTALL "Make the install rules" ${PROJECT_IS_TOP_LEVEL})
option(ECHO_WERROR "Treat warnings as errors" ${PROJECT_IS_TOP_LEVEL})
set(ECHO_SANITIZE "" CACHE STRING "Sanitizers, as for -fsanitize=, e.g. address,undefined")

if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

# Shared unless somebody says otherwise: one copy of the shared-memory state in a process, whoever links the library.
if(DEFINED BUILD_SHARED_LIBS)
  set(ECHO_BUILD_SHARED ${BUILD_SHARED_LIBS})
else()
  set(ECHO_BUILD_SHARED ON)
endif()
