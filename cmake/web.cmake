# The libraries of the build for the browser (web/build): only headers of Debian's packages, because their libraries are
# not compiled for WebAssembly. /usr/include itself must not be searched: it has the headers of another C library.
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
linnet_header_library(linnet_kissfft kissfft)
set(LINNET_KISSFFT ${headers})

# Compiles for size, since a visitor downloads the code, but the kernels for speed. If -Os were set for all files,
# emscripten would ignore the -O3 of the kernels.
set(CMAKE_CXX_FLAGS_RELEASE -DNDEBUG)
add_compile_options($<IF:$<STREQUAL:$<TARGET_PROPERTY:NAME>,linnet_kernels>,-O3,-Os>)

# WebAssembly's exceptions and SIMD; all browsers have supported both since 2023.
add_compile_options(-fwasm-exceptions -msimd128)
add_link_options(-fwasm-exceptions)
add_compile_options(-include ${PROJECT_SOURCE_DIR}/web/engine/old_libcxx.h)
