# Decides whether to build the CUDA kernels: sets LINNET_CUDA to ON or OFF and, if ON, enables the
# language CUDA. The user may set CMAKE_CUDA_COMPILER and CMAKE_CUDA_ARCHITECTURES.
set(LINNET_CUDA AUTO CACHE STRING "Build the CUDA kernels: ON, OFF, or AUTO (ON if nvcc is found)")
set_property(CACHE LINNET_CUDA PROPERTY STRINGS AUTO ON OFF)

set(reason "")
if(LINNET_CUDA AND LINNET_SANITIZE)
  set(reason "sanitizers do not support CUDA")
elseif(LINNET_CUDA AND EMSCRIPTEN)
  set(reason "browsers do not support CUDA")
elseif(LINNET_CUDA)
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(LINNET_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda
                 PATH_SUFFIXES bin DOC "The CUDA compiler")
    if(LINNET_NVCC)
      set(ENV{CUDACXX} "${LINNET_NVCC}")
    endif()
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    set(reason "nvcc is not found; set CMAKE_CUDA_COMPILER")
  else()
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(choose_architectures TRUE)
    endif()
    enable_language(CUDA)
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12)
      set(reason "nvcc has version ${CMAKE_CUDA_COMPILER_VERSION}; C++20 needs version 12")
    endif()
  endif()
endif()

if(reason AND NOT LINNET_CUDA STREQUAL AUTO)
  message(FATAL_ERROR "LINNET_CUDA=ON: ${reason}")
elseif(reason OR NOT LINNET_CUDA)
  message(STATUS "CUDA kernels: off. ${reason}")
  set(LINNET_CUDA OFF)
else()
  if(choose_architectures)
    # Machine code for Hopper, and PTX, which the driver compiles at load time for any other GPU
    # since Ampere.
    set(architectures 90-real 80-virtual)
    set(CMAKE_CUDA_ARCHITECTURES "${architectures}" CACHE STRING "Architectures of GPUs" FORCE)
  endif()
  message(STATUS "CUDA kernels: for architectures ${CMAKE_CUDA_ARCHITECTURES}, by ${CMAKE_CUDA_COMPILER} "
                 "${CMAKE_CUDA_COMPILER_VERSION}")
  find_package(CUDAToolkit REQUIRED)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 lacks nvcc 12's C++20 flag
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  set(LINNET_CUDA ON)
  # Copies for linnet/kernels/cuda, since find_package(Torch) changes the originals.
  set(LINNET_CUDA_ARCHITECTURES "${CMAKE_CUDA_ARCHITECTURES}")
  set(LINNET_CUDA_FLAGS "${CMAKE_CUDA_FLAGS}")
endif()

# LINNET_TILE_EXECUTOR: whether to test the CUDA kernels on the CPU (linnet/kernels/cuda/tile_executor.h). The executor
# reports faults with std::source_location, which clang has from version 15 on.
set(LINNET_TILE_EXECUTOR ${LINNET_TESTS})
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 15)
  set(LINNET_TILE_EXECUTOR OFF)
endif()
