# tinyshard_component(<name> SOURCES a.cpp... [DEPENDS component...] [LIBS target...])
#   An OBJECT library of one folder. DEPENDS names other components, or a box (TINYSHARD_BOX_... below: core_ir,
#   core_engine) for all components of it. A cycle stops the configuration, and scripts/check_includes.py stops the
#   build on an include against the arrows. LIBS names external targets: they reach this component's sources and the final link only.
#   Defined for the sources: TINYSHARD_VERSION.
# tinyshard_plugin(<name> SOURCES ... [LIBS ...])
#   lib<name>.so beside the library in build and installation, for a dependency that a machine may lack at run time:
#   the library opens it by name, and only it is linked to LIBS. It shows nothing but what is marked visible.
# tinyshard_add_folders(<folder>...) adds each folder, or each of its subfolders when it has no CMakeLists.txt.
# tinyshard_executable(<name> SOURCES ... [LIBS ...] [OUTPUT_NAME file] [INSTALL]) is a program linked to the library.

add_library(tinyshard SHARED ${PROJECT_SOURCE_DIR}/cmake/version.cpp)
add_library(tinyshard::tinyshard ALIAS tinyshard)

add_library(tinyshard_flags INTERFACE)
target_compile_features(tinyshard_flags INTERFACE cxx_std_20)
target_include_directories(tinyshard_flags INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(tinyshard_flags INTERFACE -Wall -Wextra $<$<BOOL:${TINYSHARD_WERROR}>:-Werror>)
target_compile_definitions(tinyshard_flags INTERFACE TINYSHARD_VERSION="${PROJECT_VERSION}")
target_link_libraries(tinyshard_flags INTERFACE Threads::Threads)

function(tinyshard_component name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;DEPENDS;LIBS")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_SOURCES)
    message(FATAL_ERROR "tinyshard_component(${name}): needs SOURCES; unknown: '${arg_UNPARSED_ARGUMENTS}'")
  endif()
  add_library(${name} OBJECT ${arg_SOURCES})
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON VISIBILITY_INLINES_HIDDEN ON)
  target_link_libraries(${name} PRIVATE tinyshard_flags ${arg_LIBS})
  tinyshard_precompile(${name} component ${TINYSHARD_COMMON_HEADERS} <fmt/format.h>)
  tinyshard_unity(${name})
  set_property(TARGET ${name} PROPERTY TINYSHARD_DEPENDS ${arg_DEPENDS})
  set_property(TARGET ${name} PROPERTY TINYSHARD_LIBS ${arg_LIBS})
  set_property(GLOBAL APPEND PROPERTY TINYSHARD_COMPONENTS ${name})
endfunction()

function(tinyshard_plugin name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBS")
  add_library(${name} MODULE ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE tinyshard_flags tinyshard ${arg_LIBS})
  target_link_options(${name} PRIVATE -Wl,--no-undefined)
  set_target_properties(${name} PROPERTIES
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR} INSTALL_RPATH "$ORIGIN"
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  set_property(GLOBAL APPEND PROPERTY TINYSHARD_PLUGINS ${name})
endfunction()

function(tinyshard_executable name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "INSTALL" "OUTPUT_NAME" "SOURCES;LIBS")
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE tinyshard_flags tinyshard ${arg_LIBS})
  if("tinyshard::command_line" IN_LIST arg_LIBS)
    tinyshard_precompile(${name} program ${TINYSHARD_COMMON_HEADERS} <chrono> <fmt/format.h> <CLI/CLI.hpp>)
  endif()
  list(LENGTH arg_SOURCES sources)
  if(sources GREATER 1)
    tinyshard_unity(${name})
  endif()
  tinyshard_not_ubsan(${name})
  get_property(plugins GLOBAL PROPERTY TINYSHARD_PLUGINS)
  if(plugins)
    add_dependencies(${name} ${plugins})
  endif()
  # An installed program finds the library from where it lies itself.
  set_target_properties(${name} PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  if(arg_OUTPUT_NAME)
    set_target_properties(${name} PROPERTIES OUTPUT_NAME ${arg_OUTPUT_NAME})
  endif()
  if(arg_INSTALL)
    set_property(GLOBAL APPEND PROPERTY TINYSHARD_INSTALLED_PROGRAMS ${name})
  endif()
endfunction()

function(tinyshard_add_folders)
  foreach(folder IN LISTS ARGN)
    set(path ${PROJECT_SOURCE_DIR}/${folder})
    if(EXISTS ${path}/CMakeLists.txt)
      add_subdirectory(${path} ${PROJECT_BINARY_DIR}/${folder})
    elseif(IS_DIRECTORY ${path})
      file(GLOB children LIST_DIRECTORIES true RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS ${path}/*)
      foreach(child IN LISTS children)
        if(IS_DIRECTORY ${PROJECT_SOURCE_DIR}/${child})
          tinyshard_add_folders(${child})
        endif()
      endforeach()
    endif()
  endforeach()
endfunction()

# The boxes that are several components.
set(TINYSHARD_BOX_core_ir core_base core_dtype core_uop core_rewrite core_runtime)
set(TINYSHARD_BOX_core_engine core_passes core_schedule core_codegen core_exec core_tensor core_nn)

# Called once, when all components are known: the order in which folders are added is free.
function(tinyshard_link_components)
  get_property(components GLOBAL PROPERTY TINYSHARD_COMPONENTS)
  foreach(component IN LISTS components)
    get_property(depends TARGET ${component} PROPERTY TINYSHARD_DEPENDS)
    foreach(dependency IN LISTS depends)
      if(dependency IN_LIST components)
        target_link_libraries(${component} PUBLIC ${dependency})
      elseif(DEFINED TINYSHARD_BOX_${dependency})
        foreach(part IN LISTS TINYSHARD_BOX_${dependency})
          if(part IN_LIST components AND NOT part STREQUAL component)
            target_link_libraries(${component} PUBLIC ${part})
          endif()
        endforeach()
      else()
        message(FATAL_ERROR "component ${component} depends on '${dependency}', which is none of: ${components}")
      endif()
    endforeach()
    get_property(libs TARGET ${component} PROPERTY TINYSHARD_LIBS)
    target_link_libraries(tinyshard PRIVATE ${component} ${libs})
  endforeach()

  set(map ${PROJECT_SOURCE_DIR}/cmake/exports.map)
  target_link_libraries(tinyshard PRIVATE tinyshard_flags)
  # Only our own symbols leave the library (exports.map and --exclude-libs): a process may hold another LLVM.
  # --gc-sections drops the two fifths of LLVM that nothing calls; --as-needed drops the libraries that LLVM's
  # archives mention but our part of them does not use (z3, libxml2). The library stays once it is loaded (nodelete): its threads do.
  target_link_options(tinyshard PRIVATE -Wl,-z,nodelete
    -Wl,--gc-sections -Wl,--exclude-libs,ALL -Wl,--version-script,${map} -Wl,--as-needed -Wl,--no-undefined
    # DT_RPATH, unlike DT_RUNPATH, also serves the libraries below: in the archive oneDNN finds its own beside it.
    -Wl,--disable-new-dtags)
  set_target_properties(tinyshard PROPERTIES
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
    LINK_DEPENDS ${map} INSTALL_RPATH "$ORIGIN" VISIBILITY_INLINES_HIDDEN ON)

  find_package(Python3 COMPONENTS Interpreter QUIET)
  set(check ${PROJECT_SOURCE_DIR}/scripts/check_includes.py)
  if(Python3_Interpreter_FOUND)
    add_custom_target(check_includes
      COMMAND ${Python3_EXECUTABLE} ${check} ${PROJECT_SOURCE_DIR} ${TINYSHARD_FOLDERS}
      COMMENT "Checking that includes follow the arrows" VERBATIM)
    add_dependencies(tinyshard check_includes)
  endif()
endfunction()
