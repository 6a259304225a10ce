# The libraries of the build for the browser (web/build): headers of this machine alone, because the libraries of
# Debian are not compiled for WebAssembly. The machine's own include folder must not be searched: its C library differs.
set(headers ${PROJECT_BINARY_DIR}/headers)
function(linnet_header_library name folder)
  find_path(${folder}_include ${folder} PATHS /usr/include /usr/local/include REQUIRED NO_CMAKE_FIND_ROOT_PATH)
  file(MAKE_DIRECTORY ${headers})
  file(CREATE_LINK ${${folder}_include}/${folder} ${headers}/${folder} SYMBOLIC)
  add_library(${name} INTERFACE IMPORTED GLOBAL)
  target_include_directories(${name} SYSTEM INTERFACE ${headers})
endfunction()
linnet_header_library(PkgConfig::hwy hwy)
linnet_header_library(nlohmann_json::nlohmann_json nlohmann)

# Small code, because a visitor downloads it, and fast kernels. After an -Os, emscripten would ignore their -O3.
set(CMAKE_CXX_FLAGS_RELEASE -DNDEBUG)
add_compile_options($<IF:$<STREQUAL:$<TARGET_PROPERTY:NAME>,linnet_kernels>,-O3,-Os>)

# Exceptions and SIMD of WebAssembly, in all browsers since 2023.
add_compile_options(-fwasm-exceptions -msimd128)
add_link_options(-fwasm-exceptions)
add_compile_options(-include ${PROJECT_SOURCE_DIR}/web/engine/old_libcxx.h)
