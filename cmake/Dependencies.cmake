# External packages. Each is an imported target that only the component using it names in LIBS;
# scripts/setup.sh installs the Debian package of each.
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(fmt 9 REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(CLI11 2.1 REQUIRED)
find_package(ZLIB REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto SSL)

# Boost.Asio is headers only.
find_package(Boost 1.74 REQUIRED)
add_library(tinyshard_asio INTERFACE)
add_library(tinyshard::asio ALIAS tinyshard_asio)
target_link_libraries(tinyshard_asio INTERFACE Boost::headers)
# C++20 has coroutines; Boost 1.74 knows that of GCC, not of Clang, which lints these sources.
target_compile_definitions(tinyshard_asio INTERFACE BOOST_ASIO_NO_DEPRECATED
  BOOST_ASIO_HAS_CO_AWAIT=1 BOOST_ASIO_HAS_STD_COROUTINE=1)
if(TINYSHARD_SANITIZE MATCHES thread)
  # Its fences are beside locks that the sanitizer does see.
  target_compile_options(tinyshard_asio INTERFACE -Wno-tsan)
endif()

# For programs with a command line. Every source that includes CLI11 compiles all of it, which at -O2 takes longer than
# the program itself; the work of our programs is in the library.
add_library(tinyshard_command_line INTERFACE)
add_library(tinyshard::command_line ALIAS tinyshard_command_line)
target_link_libraries(tinyshard_command_line INTERFACE CLI11::CLI11)
target_compile_options(tinyshard_command_line INTERFACE $<$<CONFIG:Release>:-Og>)

# LLVM brings its own variables and find modules; only its static archives are used. What it reports on the way (CURL,
# editline) does not concern us.
set(CMAKE_MESSAGE_LOG_LEVEL WARNING)
find_package(LLVM 19.1 REQUIRED CONFIG HINTS /usr/lib/llvm-19/lib/cmake/llvm)
unset(CMAKE_MESSAGE_LOG_LEVEL)
separate_arguments(tinyshard_llvm_definitions NATIVE_COMMAND "${LLVM_DEFINITIONS}")
# They mean nothing since C++11, and keep the compiler from using a precompiled <cstdint>.
list(FILTER tinyshard_llvm_definitions EXCLUDE REGEX __STDC_)
# Code for the host and for GPUs.
set(TINYSHARD_LLVM_COMPONENTS native orcjit passes NVPTX AMDGPU)
llvm_map_components_to_libnames(tinyshard_llvm_libraries ${TINYSHARD_LLVM_COMPONENTS})
add_library(tinyshard_llvm INTERFACE)
add_library(tinyshard::llvm ALIAS tinyshard_llvm)
target_include_directories(tinyshard_llvm SYSTEM INTERFACE ${LLVM_INCLUDE_DIRS})
target_compile_definitions(tinyshard_llvm INTERFACE ${tinyshard_llvm_definitions})
target_link_libraries(tinyshard_llvm INTERFACE ${tinyshard_llvm_libraries})

find_package(PkgConfig REQUIRED)
pkg_check_modules(HWLOC REQUIRED IMPORTED_TARGET hwloc)
add_library(tinyshard::hwloc ALIAS PkgConfig::HWLOC)
pkg_check_modules(ONIGURUMA REQUIRED IMPORTED_TARGET oniguruma)
add_library(tinyshard::oniguruma ALIAS PkgConfig::ONIGURUMA)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
add_library(tinyshard::utf8proc ALIAS PkgConfig::UTF8PROC)

set(TINYSHARD_HAS_ONEDNN OFF)
if(TINYSHARD_ONEDNN)
  # Debian's dnnl-config.cmake demands the OpenCL headers although its users do not need them: look for the files.
  find_path(ONEDNN_INCLUDE_DIR oneapi/dnnl/dnnl.hpp)
  find_library(ONEDNN_LIBRARY dnnl)
  mark_as_advanced(ONEDNN_INCLUDE_DIR ONEDNN_LIBRARY)
  if(ONEDNN_INCLUDE_DIR AND ONEDNN_LIBRARY)
    set(TINYSHARD_HAS_ONEDNN ON)
    file(STRINGS ${ONEDNN_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h version_lines
      REGEX "define DNNL_VERSION_(MAJOR|MINOR|PATCH) ")
    string(REGEX MATCHALL "[0-9]+" ONEDNN_VERSION "${version_lines}")
    list(JOIN ONEDNN_VERSION "." ONEDNN_VERSION)
    add_library(tinyshard_onednn INTERFACE)
    add_library(tinyshard::onednn ALIAS tinyshard_onednn)
    target_include_directories(tinyshard_onednn SYSTEM INTERFACE ${ONEDNN_INCLUDE_DIR})
    target_link_libraries(tinyshard_onednn INTERFACE ${ONEDNN_LIBRARY})
  endif()
endif()

set(TINYSHARD_HAS_MPI OFF)
if(TINYSHARD_MPI)
  find_package(MPI COMPONENTS C QUIET)
  if(MPI_C_FOUND)
    set(TINYSHARD_HAS_MPI ON)
    add_library(tinyshard_mpi_library INTERFACE)
    add_library(tinyshard::mpi ALIAS tinyshard_mpi_library)
    target_link_libraries(tinyshard_mpi_library INTERFACE MPI::MPI_C)
    # mpi.h offers C++ bindings that MPI-3 removed; their library is not linked.
    target_compile_definitions(tinyshard_mpi_library INTERFACE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
  endif()
endif()

if(TINYSHARD_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()
if(TINYSHARD_BUILD_BENCH)
  find_package(benchmark QUIET)
endif()
