# tinyshard_precompile(<target> <kind> <header>...)
#   Compiles <target> with these headers precompiled. The first target of a kind makes the precompiled header, the later
#   ones take it over: GCC wants the same code generation flags and macros of all of them (-Winvalid-pch tells). A source
#   with an optimisation level or instruction set of its own sets SKIP_PRECOMPILE_HEADERS: GCC 12 may crash on it otherwise.
#
# Parsing the standard library, fmt and GoogleTest took a third of a clean build. Sources include what they use all the
# same: the preset `tidy`, like any build with CMAKE_DISABLE_PRECOMPILE_HEADERS=ON, does without.
function(tinyshard_precompile target kind)
  get_property(maker GLOBAL PROPERTY TINYSHARD_PRECOMPILED_${kind})
  if(maker)
    target_precompile_headers(${target} REUSE_FROM ${maker})
  else()
    target_precompile_headers(${target} PRIVATE ${ARGN})
    # What ccache takes for the precompiled header: all that its content depends on. Flags count by themselves.
    string(SHA256 checksum "${CMAKE_CXX_COMPILER_VERSION} ${fmt_VERSION} ${GTest_VERSION} ${ARGN}")
    file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/${target}.dir/cmake_pch.hxx.gch.sum ${checksum})
    set_property(GLOBAL PROPERTY TINYSHARD_PRECOMPILED_${kind} ${target})
  endif()
endfunction()

# What most sources include, and no more: the larger a precompiled header, the longer each of them loads it.
set(TINYSHARD_COMMON_HEADERS
  <algorithm> <array> <atomic> <cmath> <cstdint> <cstdlib> <cstring> <functional> <limits> <memory> <optional> <span>
  <string> <string_view> <unordered_map> <utility> <vector>)
