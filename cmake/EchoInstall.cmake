# Installation: components runtime (the library) and dev (headers, find_package, pkg-config).
include(CMakePackageConfigHelpers)

install(
  TARGETS echo_comm
  EXPORT echo_comm-targets
  RUNTIME COMPONENT runtime DESTINATION ${CMAKE_INSTALL_BINDIR}
  LIBRARY COMPONENT runtime NAMELINK_COMPONENT dev DESTINATION ${CMAKE_INSTALL_LIBDIR}
  ARCHIVE COMPONENT dev DESTINATION ${CMAKE_INSTALL_LIBDIR}
  FILE_SET HEADERS COMPONENT dev DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

# The Gloo module lies where the library does: it is looked for there.
if(ECHO_GLOO_MODULE)
  install(TARGETS ${ECHO_GLOO_MODULE} LIBRARY COMPONENT runtime DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()

set(echo_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/echo_comm)
install(
  EXPORT echo_comm-targets
  NAMESPACE echo_comm::
  DESTINATION ${echo_cmake_dir}
  COMPONENT dev)

configure_package_config_file(cmake/echo_comm-config.cmake.in ${PROJECT_BINARY_DIR}/cmake/echo_comm-config.cmake
                              INSTALL_DESTINATION ${echo_cmake_dir})
# Before 1.0 a minor version may change the interface.
if(PROJECT_VERSION_MAJOR EQUAL 0)
  set(echo_compatibility SameMinorVersion)
else()
  set(echo_compatibility SameMajorVersion)
endif()
write_basic_package_version_file(${PROJECT_BINARY_DIR}/cmake/echo_comm-config-version.cmake
                                 COMPATIBILITY ${echo_compatibility})

# echo_comm.pc finds its prefix from where it lies, so `cmake --install --prefix` may put it anywhere. An absolute
# library or include folder (some distributions set one) is kept as it is.
set(echo_pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
if(IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR})
  set(echo_pc_prefix ${CMAKE_INSTALL_PREFIX})
else()
  file(RELATIVE_PATH echo_pc_up /prefix/${echo_pc_dir} /prefix)
  string(REGEX REPLACE "/$" "" echo_pc_up "${echo_pc_up}")
  set(echo_pc_prefix "\${pcfiledir}/${echo_pc_up}")
endif()
set(echo_pc_libdir "\${prefix}")
cmake_path(APPEND echo_pc_libdir ${CMAKE_INSTALL_LIBDIR})
set(echo_pc_includedir "\${prefix}")
cmake_path(APPEND echo_pc_includedir ${CMAKE_INSTALL_INCLUDEDIR})
set(echo_pc_cflags "")
set(echo_pc_libs_private "-pthread")
if(NOT ECHO_BUILD_SHARED)
  set(echo_pc_cflags "-DECHO_COMM_STATIC")
  set(echo_pc_libs_private "-lstdc++ -lm -pthread")
endif()
configure_file(cmake/echo_comm.pc.in ${PROJECT_BINARY_DIR}/cmake/echo_comm.pc @ONLY)

install(
  FILES ${PROJECT_BINARY_DIR}/cmake/echo_comm-config.cmake ${PROJECT_BINARY_DIR}/cmake/echo_comm-config-version.cmake
  DESTINATION ${echo_cmake_dir}
  COMPONENT dev)
install(FILES ${PROJECT_BINARY_DIR}/cmake/echo_comm.pc DESTINATION ${echo_pc_dir} COMPONENT dev)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/licenses/echo_comm COMPONENT runtime)
