# Run at installation: copies <tinyshard/tinyshard.h>, <tinyshard/uop.h> and every header of ours that they lead to, as
# scripts/check_includes.py sees them (that script keeps vendor headers out of them), to <prefix>/<include_dir>/tinyshard.
# In the tree they name each other from its root ("core/dtype/dtype.h"); installed, from the one directory that a
# consumer has in its path ("tinyshard/core/dtype/dtype.h"), where no other folder of ours lies.
cmake_policy(VERSION 3.25)
set(todo tinyshard/tinyshard.h tinyshard/uop.h)
set(seen)
while(todo)
  list(POP_FRONT todo header)
  if(header IN_LIST seen OR NOT EXISTS ${source_dir}/${header})
    continue()
  endif()
  list(APPEND seen ${header})
  file(READ ${source_dir}/${header} text)
  file(STRINGS ${source_dir}/${header} includes REGEX "^ *# *include *\"")
  foreach(line IN LISTS includes)
    string(REGEX REPLACE ".*\"(.*)\".*" "\\1" included "${line}")
    list(APPEND todo ${included})
    if(EXISTS ${source_dir}/${included} AND NOT included MATCHES "^tinyshard/")
      string(REPLACE "\"${included}\"" "\"tinyshard/${included}\"" text "${text}")
    endif()
  endforeach()
  string(REGEX REPLACE "^tinyshard/" "" place ${header})
  file(WRITE ${binary_dir}/installed_headers/${place} "${text}")
  cmake_path(GET place PARENT_PATH folder)
  file(INSTALL ${binary_dir}/installed_headers/${place}
    DESTINATION ${CMAKE_INSTALL_PREFIX}/${include_dir}/tinyshard/${folder})
endwhile()
