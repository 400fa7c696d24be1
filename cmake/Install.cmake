# Install rules, CMake package, pkg-config file and the relocatable archive.
#   cmake --install build/release --prefix <dir>      library, headers, programs, package files
#   cpack --config build/release/CPackConfig.cmake    the same and the shared libraries it needs, in one .tar.gz
# A consumer needs neither LLVM nor any other development package: our headers include none of them.
include(CMakePackageConfigHelpers)

set(cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tinyshard)

# The public header is <tinyshard/tinyshard.h>; the others lie below it.
target_include_directories(tinyshard INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_compile_features(tinyshard INTERFACE cxx_std_20)

install(TARGETS tinyshard EXPORT tinyshardTargets
  RUNTIME_DEPENDENCY_SET tinyshard_runtime
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
get_property(plugins GLOBAL PROPERTY TINYSHARD_PLUGINS)
if(plugins)
  install(TARGETS ${plugins} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
get_property(programs GLOBAL PROPERTY TINYSHARD_INSTALLED_PROGRAMS)
if(programs)
  install(TARGETS ${programs} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

# The headers that the public one leads to are found when they are installed, so that no list is kept by hand.
install(CODE "
  set(source_dir \"${PROJECT_SOURCE_DIR}\")
  set(binary_dir \"${PROJECT_BINARY_DIR}\")
  set(include_dir \"${CMAKE_INSTALL_INCLUDEDIR}\")
  include(\"${PROJECT_SOURCE_DIR}/cmake/InstallHeaders.cmake\")")
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

install(EXPORT tinyshardTargets NAMESPACE tinyshard:: DESTINATION ${cmake_dir})
configure_package_config_file(cmake/tinyshardConfig.cmake.in ${PROJECT_BINARY_DIR}/tinyshardConfig.cmake
  INSTALL_DESTINATION ${cmake_dir} NO_CHECK_REQUIRED_COMPONENTS_MACRO)
# Before 1.0 each minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tinyshardConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tinyshardConfig.cmake ${PROJECT_BINARY_DIR}/tinyshardConfigVersion.cmake
  DESTINATION ${cmake_dir})

# The .pc file finds its prefix from where it lies, so that it may be moved with the rest.
file(RELATIVE_PATH TINYSHARD_PC_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
string(REGEX REPLACE "/$" "" TINYSHARD_PC_PREFIX ${TINYSHARD_PC_PREFIX})
configure_file(cmake/tinyshard.pc.in ${PROJECT_BINARY_DIR}/tinyshard.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tinyshard.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# The archive carries the shared libraries that are not on every Debian machine. Left out: the C and C++ runtime
# (theirs must be the newer one) and Open MPI (its plug-ins, daemons and launcher belong to the machine; the library
# opens its own MPI plug-in only when a launcher has started ranks).
install(RUNTIME_DEPENDENCY_SET tinyshard_runtime
  COMPONENT bundle EXCLUDE_FROM_ALL
  PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|pthread|stdc\\+\\+|gcc_s)\\.so" "^lib(mpi|open-(rte|pal))"
  POST_EXCLUDE_REGEXES "openmpi"
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
# Their licences, and those of what is linked statically, travel along.
foreach(package llvm-19-dev libdnnl2 libgomp1 libfmt9 libhwloc15 libonig5 libutf8proc2 libzstd1 zlib1g libudev1 ocl-icd-libopencl1
    nlohmann-json3-dev libcli11-dev libssl3 libboost-dev)
  if(EXISTS /usr/share/doc/${package}/copyright)
    install(FILES /usr/share/doc/${package}/copyright RENAME ${package}.txt
      DESTINATION ${CMAKE_INSTALL_DOCDIR}/third_party COMPONENT bundle EXCLUDE_FROM_ALL)
  endif()
endforeach()

set(CPACK_GENERATOR TGZ)
set(CPACK_PACKAGE_NAME tinyshard)
set(CPACK_PACKAGE_VENDOR "the tinyshard authors")
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_FILE_NAME tinyshard-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR})
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES ON)
set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
set(CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY ON)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_COMPONENTS_ALL Unspecified bundle)
set(CPACK_VERBATIM_VARIABLES ON)
include(CPack)
