# Language level, default build type, faster linker and compiler cache, sanitizers.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set_property(GLOBAL PROPERTY USE_FOLDERS ON)

include(GNUInstallDirs)

# Release has no debug information: it halves build time and archive size. `dev` is the preset to debug with.
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, RelWithDebInfo or Debug" FORCE)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g -DNDEBUG")
set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g")

# GCC looks for memory to free whenever its heap has grown by some share of 128 MiB or more. A source of ours needs 300 to
# 1200 MiB in all, and takes up to a quarter less time when the search begins at 512 MiB; the peak grows by a fifth. The
# object stays the same, so ccache does not count the option.
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  add_compile_options(--param=ggc-min-heapsize=524288)
endif()

find_program(TINYSHARD_CCACHE ccache)
if(TINYSHARD_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Objects are shared between checkouts: paths below the source folder count relative to it, the folder of the build does
  # not count, and a precompiled header counts by its checksum file (cmake/Precompiled.cmake), as its bytes differ each time.
  # Without the sloppiness, ccache leaves everything to the compiler that uses a precompiled header.
  set(sloppiness pch_defines,time_macros,include_file_mtime,include_file_ctime)
  set(CMAKE_C_COMPILER_LAUNCHER ${TINYSHARD_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=${sloppiness} CCACHE_NOHASHDIR=1
    CCACHE_PCH_EXTSUM=1 CCACHE_IGNOREOPTIONS=--param=ggc-* CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} ${TINYSHARD_CCACHE})
endif()

# The static LLVM makes linking the slowest step of a small change; mold takes it from seconds to under one.
find_program(TINYSHARD_MOLD mold)
if(TINYSHARD_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

# tinyshard_not_ubsan(<target>): tests and programs are not judged by the sanitizer of undefined behaviour, whose checks take
# as long to compile as all else in them: that is for the library.
function(tinyshard_not_ubsan target)
  if(TINYSHARD_SANITIZE MATCHES undefined)
    target_compile_options(${target} PRIVATE -fno-sanitize=undefined)
  endif()
endfunction()

if(TINYSHARD_SANITIZE)
  add_compile_options(-fsanitize=${TINYSHARD_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${TINYSHARD_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # Reports show lines, not variables; following these through optimised code took a quarter of a large test's compilation.
    add_compile_options(-g1 -fno-var-tracking)
    # GCC takes values that the sanitizers' checks lead around for uninitialised.
    add_compile_options(-Wno-maybe-uninitialized)
  endif()
  if(TINYSHARD_SANITIZE MATCHES "undefined")
    add_compile_options(-fno-sanitize-recover=undefined)
  endif()
endif()
