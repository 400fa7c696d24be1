# tinyshard_unity(<target>)
#   With TINYSHARD_UNITY, the sources of <target> are compiled eight at a time (tests six), as one unit: headers are parsed
#   and templates instantiated once for all, which takes half of the processor time of single units. Sources with options
#   of their own (CMake sees COMPILE_OPTIONS) are compiled alone.
#
# A source stays one that compiles by itself: names in its unnamed namespace differ from those of its neighbours (a test
# has a namespace of its own name instead), and it includes what it uses. The presets `dev` and `tidy` and scripts/lint.sh
# compile each source alone.
function(tinyshard_unity target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${TINYSHARD_UNITY} UNITY_BUILD_BATCH_SIZE 8)
  # GCC takes a source that is part of a unit for a header: unnamed namespaces, and memory that it sees through more
  # inlining, are then warned of where nothing is wrong.
  if(TINYSHARD_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage -Wno-free-nonheap-object)
  endif()
endfunction()
