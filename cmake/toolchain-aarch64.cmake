# 64-bit Arm on a Debian machine of another kind: cross compiler g++-aarch64-linux-gnu, tests run under qemu-user.
# QEMU_CPU chooses the processor, e.g. QEMU_CPU=max,sve=off; scripts/arm does.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)

set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
foreach(kind IN ITEMS LIBRARY INCLUDE PACKAGE)
  set(CMAKE_FIND_ROOT_PATH_MODE_${kind} ONLY)
endforeach()

# Highway's headers fit every processor, but the folder that they are in also holds those of this machine's C library.
if(EXISTS /usr/include/hwy AND NOT EXISTS ${CMAKE_BINARY_DIR}/portable/hwy)
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/portable)
  file(CREATE_LINK /usr/include/hwy ${CMAKE_BINARY_DIR}/portable/hwy SYMBOLIC)
endif()
set(ECHO_HIGHWAY_INCLUDE ${CMAKE_BINARY_DIR}/portable CACHE PATH "Folder of Highway's headers")
