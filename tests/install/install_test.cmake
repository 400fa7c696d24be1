# Run by ctest (see CMakeLists.txt beside it). Each step stops the test with its output when it fails.
cmake_minimum_required(VERSION 3.25)

function(run what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${what} failed (${status}):\n${ARGN}\n${output}")
  endif()
  message(STATUS "${what}: ok")
  set(output "${output}" PARENT_SCOPE)
endfunction()

function(expect what text)
  if(NOT output MATCHES "${text}")
    message(FATAL_ERROR "${what}: expected '${text}' in:\n${output}")
  endif()
endfunction()

# A consumer has none of our build's surroundings.
unset(ENV{LD_LIBRARY_PATH})
unset(ENV{CMAKE_PREFIX_PATH})
file(REMOVE_RECURSE ${WORK_DIR})

# 1. Install, and move: nothing may remember the prefix it was installed to.
run("install" ${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${WORK_DIR}/staging)
file(RENAME ${WORK_DIR}/staging ${WORK_DIR}/prefix)
set(prefix ${WORK_DIR}/prefix)

# 2. A CMake project against it; no other package of ours is needed, so none may be looked for.
run("configure the consumer" ${CMAKE_COMMAND} -S ${CONSUMER_DIR} -B ${WORK_DIR}/consumer -G Ninja
  -D CMAKE_CXX_COMPILER=${CXX} -D CMAKE_PREFIX_PATH=${prefix} -D CMAKE_FIND_PACKAGE_PREFER_CONFIG=ON)
file(STRINGS ${WORK_DIR}/consumer/CMakeCache.txt found REGEX "^[A-Za-z_]+_DIR:")
foreach(entry IN LISTS found)
  if(NOT entry MATCHES "^(tinyshard|CMAKE|consumer)")
    message(FATAL_ERROR "the package made its consumer look for another: ${entry}")
  endif()
endforeach()
run("build the consumer" ${CMAKE_COMMAND} --build ${WORK_DIR}/consumer)
run("run the consumer" ${WORK_DIR}/consumer/consumer)
expect("the consumer" "tinyshard ${VERSION}.*sum 15")
# The header of graphs, <tinyshard/uop.h>, by itself.
run("run the examples of UOps" ${WORK_DIR}/consumer/uops)

# 3. A compiler and pkg-config.
set(ENV{PKG_CONFIG_PATH} ${prefix}/${LIBDIR}/pkgconfig)
run("ask pkg-config" ${PKG_CONFIG} --cflags --libs tinyshard)
separate_arguments(flags UNIX_COMMAND "${output}")
run("compile with pkg-config's flags" ${CXX} ${CONSUMER_DIR}/main.cpp -o ${WORK_DIR}/by_pkg_config ${flags}
  -Wl,-rpath,${prefix}/${LIBDIR})
run("run what pkg-config built" ${WORK_DIR}/by_pkg_config)
expect("the program" "sum 15")

# 4. A compiler alone: one directory of headers, in which nothing but a folder of our name lies.
run("compile with one include directory" ${CXX} -std=c++20 -I ${prefix}/include ${CONSUMER_DIR}/main.cpp
  -o ${WORK_DIR}/by_hand -L ${prefix}/${LIBDIR} -ltinyshard -Wl,-rpath,${prefix}/${LIBDIR})
run("run what the compiler built" ${WORK_DIR}/by_hand)
expect("the program" "sum 15")
file(GLOB folders RELATIVE ${prefix}/include ${prefix}/include/*)
if(NOT folders STREQUAL "tinyshard")
  message(FATAL_ERROR "the include directory holds ${folders}")
endif()
run("ask pkg-config for include directories" ${PKG_CONFIG} --cflags-only-I tinyshard)
string(REGEX MATCHALL "-I" count "${output}")
list(LENGTH count count)
if(NOT count EQUAL 1)
  message(FATAL_ERROR "pkg-config gives ${count} include directories: ${output}")
endif()

# 5. What is ours is all that the library shows: a process may hold another LLVM or fmt.
run("list the exported symbols" ${NM} -D --defined-only ${prefix}/${LIBDIR}/libtinyshard.so)
string(REGEX MATCHALL "[^\n]+ [A-Za-z] [^\n]+" symbols "${output}")
foreach(symbol IN LISTS symbols)
  if(NOT symbol MATCHES "9tinyshard| tinyshard_| A ")
    message(FATAL_ERROR "a symbol that is not ours leaves the library: ${symbol}")
  endif()
endforeach()
list(LENGTH symbols count)
if(count LESS 10)
  message(FATAL_ERROR "only ${count} symbols are exported:\n${output}")
endif()

# 6. The archive, unpacked elsewhere; its programs and its package work from there.
run("pack" ${CMAKE_CPACK_COMMAND} --config ${BUILD_DIR}/CPackConfig.cmake -B ${WORK_DIR}/packed)
file(GLOB archive ${WORK_DIR}/packed/*.tar.gz)
file(ARCHIVE_EXTRACT INPUT ${archive} DESTINATION ${WORK_DIR}/elsewhere)
file(REMOVE_RECURSE ${prefix} ${WORK_DIR}/packed)
file(GLOB unpacked ${WORK_DIR}/elsewhere/*)
run("run the unpacked command" ${unpacked}/bin/tinyshard devices)
expect("the unpacked command" "CPU")
run("configure against the archive" ${CMAKE_COMMAND} -S ${CONSUMER_DIR} -B ${WORK_DIR}/consumer2 -G Ninja
  -D CMAKE_CXX_COMPILER=${CXX} -D CMAKE_PREFIX_PATH=${unpacked})
run("build against the archive" ${CMAKE_COMMAND} --build ${WORK_DIR}/consumer2)
run("run against the archive" ${WORK_DIR}/consumer2/consumer)
expect("the consumer of the archive" "sum 15")
file(REMOVE_RECURSE ${WORK_DIR})
