# tinyshard_test(<name> SOURCES a.cpp... [LABELS label...] [RANKS n...] [TIMEOUT seconds] [LIBS target...]
#                [ENVIRONMENT NAME=value...] [IN program] [NO_MAIN] [ON_GPU] [ALONE] [VERIFIED])
#   A GoogleTest program, registered in ctest as one test; NO_MAIN when the sources hold main(). With IN the sources are
#   part of <program> (tests/main.cpp), of which the test runs their cases alone: `program --source=a.cpp`. Sources of one
#   program are compiled several at a time, in half of the processor time; so each has a namespace of its own name. A test
#   has a program to itself where it needs the process: threads that the thread sanitizer judges, functions in place of the
#   system's, macros of its own. With ON_GPU it is registered once more, as <name>_on_gpu, with the GPUs of the machine as
#   default devices, and with VERIFIED once more, as <name>_verified, with SPEC=2 and TS_CHECK=memory,values: each graph,
#   the memory of each schedule, each access and each result of a generated kernel is verified. With RANKS it runs under
#   mpirun once per given n, as <name>_<n>_ranks (labels gain `mpi`; skipped with a message when Open MPI is absent), and
#   with ALONE also without mpirun. With TCP_RANKS it runs by `tinyshard run`, over TCP, once per given n, as
#   <name>_<n>_ranks_tcp; with SOCKET_RANKS in the same way without shared memory, as <name>_<n>_ranks_sockets; with
#   SECURE_RANKS also encrypted, as <name>_<n>_ranks_secure. Labels in use: mpi, slow, gpu, install, cluster (hosts are network namespaces), values for long comparisons of results alone,
#   which the presets of sanitizers leave out, and threads for those that the thread sanitizer judges: the target
#   threads_tests builds these. Sanitizer builds get five times the TIMEOUT (default 120 s).

# Data sets and recorded results that are too large for the tree, where they lie beside it: data/ and golden/. Tests
# skip, saying so, without them; TINYSHARD_TEST_DATA in the environment names another folder.
find_path(TINYSHARD_TEST_DATA_DIR golden/manifest.json NO_DEFAULT_PATH
  PATHS ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/shared ${PROJECT_SOURCE_DIR}/../shared
  DOC "Folder with data/ and golden/ for the tests that use them")

# tinyshard_regex_sources(<file>...): GCC takes the inside of std::regex for uninitialised when a sanitizer keeps it from
# looking through. For the sources of the present folder.
function(tinyshard_regex_sources)
  if(TINYSHARD_SANITIZE)
    set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  endif()
endfunction()

# tinyshard_test_objects(<name> SOURCES a.cpp... [LIBS target...]) is what several tests share, for their LIBS.
function(tinyshard_test_objects name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBS")
  add_library(${name} OBJECT ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE tinyshard_flags ${arg_LIBS})
  tinyshard_test_flags(${name})
  tinyshard_unity(${name})
endfunction()

function(tinyshard_test_flags target)
  target_link_libraries(${target} PRIVATE GTest::gtest)
  # What is tested is optimised fully; the tests around it would take half of a clean build.
  if(TINYSHARD_SANITIZE OR CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(${target} PRIVATE -Og)
  endif()
  tinyshard_not_ubsan(${target})
  tinyshard_precompile(${target} test ${TINYSHARD_COMMON_HEADERS} <gtest/gtest.h>)
endfunction()

if(TINYSHARD_BUILD_TESTS)
  add_custom_target(threads_tests)
  tinyshard_test_objects(tinyshard_test_main SOURCES ${PROJECT_SOURCE_DIR}/tests/main.cpp)
  # The only source that knows the folder: compiler caches share all other objects between checkouts.
  tinyshard_test_objects(tinyshard_test_data SOURCES ${PROJECT_SOURCE_DIR}/tests/test_data.cpp)
  target_compile_definitions(tinyshard_test_data PRIVATE TINYSHARD_TEST_DATA_DIR="$<$<BOOL:${TINYSHARD_TEST_DATA_DIR}>:${TINYSHARD_TEST_DATA_DIR}>")
endif()

function(tinyshard_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "NO_MAIN;ON_GPU;ALONE;VERIFIED" "IN;TIMEOUT" "SOURCES;LABELS;RANKS;TCP_RANKS;SOCKET_RANKS;SECURE_RANKS;LIBS;ENVIRONMENT")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_SOURCES)
    message(FATAL_ERROR "tinyshard_test(${name}): needs SOURCES; unknown: '${arg_UNPARSED_ARGUMENTS}'")
  endif()
  set(program ${name})
  set(cases)
  if(arg_IN)
    set(program ${arg_IN})
    list(TRANSFORM arg_SOURCES PREPEND --source= OUTPUT_VARIABLE cases)
  endif()
  if(TARGET ${program})
    target_sources(${program} PRIVATE ${arg_SOURCES})
    target_link_libraries(${program} PRIVATE ${arg_LIBS})
  else()
    if(arg_IN OR arg_ON_GPU)
      list(APPEND arg_LIBS tinyshard_test_main)
    elseif(NOT arg_NO_MAIN)
      list(APPEND arg_LIBS GTest::gtest_main)
    endif()
    tinyshard_executable(${program} SOURCES ${arg_SOURCES} LIBS ${arg_LIBS})
    tinyshard_unity(${program})
    set_target_properties(${program} PROPERTIES UNITY_BUILD_BATCH_SIZE 6)  # sources of tests are long
    tinyshard_test_flags(${program})
  endif()
  if("threads" IN_LIST arg_LABELS)
    add_dependencies(threads_tests ${program})
  endif()

  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  if(TINYSHARD_SANITIZE)
    math(EXPR arg_TIMEOUT "5 * ${arg_TIMEOUT}")
  endif()

  if(arg_ALONE OR NOT arg_RANKS)
    add_test(NAME ${name} COMMAND ${program} ${cases})
    tinyshard_test_properties(${name} "${arg_LABELS}" ${arg_TIMEOUT} 1 "${arg_ENVIRONMENT}")
    if(arg_ON_GPU)
      add_test(NAME ${name}_on_gpu COMMAND ${program} ${cases})
      tinyshard_test_properties(${name}_on_gpu "${arg_LABELS};gpu" ${arg_TIMEOUT} 1 "TS_DEVICES=CUDA;${arg_ENVIRONMENT}")
      set_tests_properties(${name}_on_gpu PROPERTIES SKIP_REGULAR_EXPRESSION "^skipped:")
    endif()
    # On AMD's GPUs, or on what stands in for their runtime: slow, and so only where a folder is named.
    if(arg_ON_GPU AND TINYSHARD_TEST_HIP_PATH)
      add_test(NAME ${name}_on_hip COMMAND ${program} ${cases})
      tinyshard_test_properties(${name}_on_hip "${arg_LABELS};hip" 3600 1
        "TS_DEVICES=HIP;TS_HIP_PATH=${TINYSHARD_TEST_HIP_PATH};${arg_ENVIRONMENT}")
      set_tests_properties(${name}_on_hip PROPERTIES SKIP_REGULAR_EXPRESSION "^skipped:")
    endif()
  endif()
  if(arg_VERIFIED AND NOT TINYSHARD_SANITIZE)  # what it verifies, generated kernels and plans, no sanitizer sees
    add_test(NAME ${name}_verified COMMAND ${program} ${cases})
    tinyshard_test_properties(${name}_verified "${arg_LABELS}" ${arg_TIMEOUT} 1 "SPEC=2;TS_CHECK=memory,values;${arg_ENVIRONMENT}")
  endif()
  foreach(ranks IN LISTS arg_RANKS)
    set(test ${name}_${ranks}_ranks)
    if(TINYSHARD_HAS_MPI)
      tinyshard_mpirun(command ${ranks})
      add_test(NAME ${test} COMMAND ${command} $<TARGET_FILE:${program}> ${cases})
    else()
      add_test(NAME ${test} COMMAND ${CMAKE_COMMAND} -E echo "skipped: Open MPI was not found at configure time")
      set_tests_properties(${test} PROPERTIES SKIP_REGULAR_EXPRESSION "^skipped:")
    endif()
    tinyshard_test_properties(${test} "${arg_LABELS};mpi" ${arg_TIMEOUT} ${ranks}
      "OMP_NUM_THREADS=1;${arg_ENVIRONMENT}")
  endforeach()
  foreach(kind TCP SOCKET SECURE)
    set(ranks_of_kind ${arg_${kind}_RANKS})
    if(TINYSHARD_SANITIZE AND ranks_of_kind)
      list(GET ranks_of_kind 0 ranks_of_kind)  # more ranks than cores take minutes, and show nothing else
    endif()
    foreach(ranks IN LISTS ranks_of_kind)
      set(test ${name}_${ranks}_ranks_tcp)
      set(transport TS_TRANSPORT=tcp)
      if(kind STREQUAL SOCKET)
        set(test ${name}_${ranks}_ranks_sockets)
        set(transport TS_TRANSPORT=sockets)
      elseif(kind STREQUAL SECURE)
        set(test ${name}_${ranks}_ranks_secure)
        set(transport TS_TRANSPORT=sockets TS_SECURE=1)
      endif()
      add_test(NAME ${test} COMMAND tinyshard_cli run --cores all -n ${ranks} -- $<TARGET_FILE:${program}> ${cases})
      tinyshard_test_properties(${test} "${arg_LABELS}" ${arg_TIMEOUT} ${ranks}
        "OMP_NUM_THREADS=1;${transport};${arg_ENVIRONMENT}")
      add_dependencies(${program} tinyshard_cli)
    endforeach()
  endforeach()
endfunction()

# Sets <out> to the mpirun command line for <ranks> processes on this machine. mpirun refuses root (containers, CI) and
# more ranks than cores unless told; binding would put oversubscribed ranks on the same core; `yield` lets waiting
# ranks give the core away; the plain shared memory and TCP components keep start-up quick where no fabric exists.
function(tinyshard_mpirun out ranks)
  # Open MPI leaves a few thousand blocks behind, and its TCP component takes locks in two orders.
  set(forgiven)
  if(TINYSHARD_SANITIZE MATCHES address)
    set(forgiven -x ASAN_OPTIONS=detect_leaks=0)
  elseif(TINYSHARD_SANITIZE MATCHES thread)
    set(forgiven -x TSAN_OPTIONS=detect_deadlocks=0)
  endif()
  set(${out} ${MPIEXEC_EXECUTABLE} --allow-run-as-root --oversubscribe --bind-to none
    --mca mpi_yield_when_idle 1 --mca btl self,vader,tcp --mca btl_vader_single_copy_mechanism none
    ${forgiven} -n ${ranks} PARENT_SCOPE)
endfunction()

function(tinyshard_test_properties test labels timeout processors environment)
  list(REMOVE_DUPLICATES labels)
  cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
  if(processors GREATER cores)
    set(processors ${cores})
  endif()
  # Tests never read or fill the user's kernel cache.
  set_tests_properties(${test} PROPERTIES LABELS "${labels}" TIMEOUT ${timeout} PROCESSORS ${processors}
    ENVIRONMENT "XDG_CACHE_HOME=${PROJECT_BINARY_DIR}/test-cache;${environment}")
endfunction()
