# linnet_library(FOLDER SOURCES a.cc ... DEPS base ... [LIBS Torch ...] [INSTALL run|train])
#   Adds the static library linnet_FOLDER from a folder's sources. With INSTALL, the installed library
#   of the inference (run) or the training (train) half contains it (package.cmake).
function(linnet_library folder)
  cmake_parse_arguments(arg "" "INSTALL" "SOURCES;DEPS;LIBS" ${ARGN})
  add_library(linnet_${folder} STATIC ${arg_SOURCES})
  target_include_directories(linnet_${folder} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
    $<INSTALL_INTERFACE:include>)
  target_compile_features(linnet_${folder} PUBLIC cxx_std_20)
  list(TRANSFORM arg_DEPS PREPEND linnet_)
  target_link_libraries(linnet_${folder} PUBLIC ${arg_DEPS} ${arg_LIBS})
  if(arg_INSTALL)
    set_property(GLOBAL APPEND PROPERTY linnet_${arg_INSTALL}_folders ${folder})
    set_property(GLOBAL APPEND PROPERTY linnet_${arg_INSTALL}_libraries ${arg_LIBS})
  endif()
endfunction()

# linnet_sources(VARIABLE PATTERN ...)
#   Sets VARIABLE to the files that match, except tests and references (*_test.cc, *_ref.cc). New files need no line in
#   CMakeLists.txt.
function(linnet_sources variable)
  file(GLOB sources CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} ${ARGN})
  list(FILTER sources EXCLUDE REGEX "_(test|ref)\\.cc$")
  set(${variable} ${sources} PARENT_SCOPE)
endfunction()

# linnet_cold_code(TARGET)
#   Compiles a target with -O1, for targets that spend their time in libraries: programs, tests, readers of files, and
#   the training half, whose arithmetic is in libtorch, oneDNN and linnet/kernels. Their files, mostly templates of
#   torch, GoogleTest, CLI11 and JSON, then compile in two thirds of the time. All users of a precompiled header need
#   the same -O: with another, GCC 12 crashes.
function(linnet_cold_code target)
  if(NOT EMSCRIPTEN)  # web.cmake sets -Os
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
endfunction()

# linnet_large_unity(TARGET)
#   With LINNET_UNITY, merges up to 16 files into one compilation, because each compilation with torch's precompiled
#   headers instantiates their templates again, which takes 5 seconds.
function(linnet_large_unity target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD_BATCH_SIZE 16)
endfunction()

# linnet_torch_headers(TARGET)
#   Compiles a program with linnet_ops' precompiled torch headers: parsing them takes longer than compiling most files.
#   A program that reuses them must be compiled with the same flags as linnet_ops, a library: with -fPIC, not with the
#   -fPIE that CMake sets for programs.
function(linnet_torch_headers target)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${target} PRIVATE -fPIC)
  linnet_cold_code(${target})
  linnet_large_unity(${target})
  target_precompile_headers(${target} REUSE_FROM linnet_ops)
endfunction()

# linnet_test(NAME SOURCES a_test.cc ... DEPS base ... [LABELS torch] [ENV K=V ...] [ARGS ...])
#   Adds the GoogleTest executable NAME and registers it with ctest. Tests share precompiled headers, torch's or
#   base_test's, unless they need other compiler options (DISABLE_PRECOMPILE_HEADERS).
function(linnet_test name)
  if(NOT LINNET_TESTS)
    return()
  endif()
  cmake_parse_arguments(arg "" "" "SOURCES;DEPS;LIBS;LABELS;ENV;ARGS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  list(TRANSFORM arg_DEPS PREPEND linnet_)
  target_link_libraries(${name} PRIVATE ${arg_DEPS} ${arg_LIBS} GTest::gtest_main)
  if("torch" IN_LIST arg_LABELS)
    linnet_torch_headers(${name})
  else()
    linnet_cold_code(${name})
    if(name STREQUAL "base_test")
      target_link_libraries(base_test PRIVATE nlohmann_json::nlohmann_json)
      target_precompile_headers(base_test PRIVATE <gtest/gtest.h> <nlohmann/json.hpp>)
    elseif(TARGET base_test)
      target_precompile_headers(${name} REUSE_FROM base_test)
    endif()
  endif()
  add_test(NAME ${name} COMMAND ${name} ${arg_ARGS} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set(timeout 600)
  if(LINNET_SANITIZE)
    set(timeout 3600)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" ENVIRONMENT "${arg_ENV}" TIMEOUT ${timeout})
  if("torch" IN_LIST arg_LABELS)
    linnet_one_processor(${name})
  endif()
endfunction()

# linnet_python_test(NAME [SCRIPT FILE] [ARGS ... | NO_ARGS] [LABELS ...] [ALONE] [SKIPS])
#   A test in Python: NAME.py of the current folder, or FILE. ARGS: arguments instead of the folder with the programs.
#   ALONE: on one processor of its own (linnet_one_processor). SKIPS: an exit status of 77 means that it was skipped.
function(linnet_python_test name)
  cmake_parse_arguments(arg "ALONE;NO_ARGS;SKIPS" "SCRIPT" "ARGS;LABELS" ${ARGN})
  if(NOT arg_SCRIPT)
    set(arg_SCRIPT ${name}.py)
  endif()
  if(NOT arg_ARGS AND NOT arg_NO_ARGS)
    set(arg_ARGS $<TARGET_FILE_DIR:linnet>)
  endif()
  add_test(NAME ${name} COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/${arg_SCRIPT} ${arg_ARGS}
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES TIMEOUT 1200 LABELS "${arg_LABELS}" ENVIRONMENT "${LINNET_LSAN_OPTIONS}")
  if(arg_SKIPS)
    set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77)
  endif()
  if(arg_ALONE)
    linnet_one_processor(${name})
  endif()
endfunction()

# linnet_one_processor(TEST ...)
#   Lets ctest run each of these tests on one processor of its own. Otherwise concurrent tests share processors, and at
#   a barrier the threads of a test wait for one that is not running. On a machine of two processors,
#   runtime_conformance_test takes 126 seconds on its own processor; it took 290 when it shared both with another test.
#   These are the long tests, so COST makes ctest start them first.
function(linnet_one_processor)
  set_tests_properties(${ARGN} PROPERTIES PROCESSOR_AFFINITY ON COST 100)
endfunction()

# linnet_embed_pages(VARIABLE NAMESPACE)
#   Sets VARIABLE to a generated source file that embeds the folder pages/ (embed_files.cmake).
function(linnet_embed_pages variable namespace)
  file(GLOB pages CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/pages/*)
  set(out ${CMAKE_CURRENT_BINARY_DIR}/pages.cc)
  set(script ${PROJECT_SOURCE_DIR}/cmake/embed_files.cmake)
  add_custom_command(OUTPUT ${out}
    COMMAND ${CMAKE_COMMAND} -D "OUT=${out}" -D "FOLDER=${CMAKE_CURRENT_SOURCE_DIR}/pages"
            -D NAMESPACE=${namespace} -P ${script}
    DEPENDS ${pages} ${script}
    VERBATIM)
  set(${variable} ${out} PARENT_SCOPE)
endfunction()

# linnet_hidden_members(TARGET)
#   With LINNET_UNITY, a target's files are #included, so GCC takes them for headers and warns of class members whose
#   types are in an unnamed namespace. This function turns the warning off.
function(linnet_hidden_members target)
  if(LINNET_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  endif()
endfunction()
