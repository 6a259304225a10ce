# The installed library. Components:
#   library  liblinnet.so with the C++ and the C API, its headers (include/linnet), linnet.pc and
#            the CMake package: linnet::linnet
#   static   liblinnet.a, the same as a static library: linnet::static
#   nn       liblinnet_nn.a, layers, attention and training over libtorch, with its headers: linnet::nn
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/linnet)

# Sets VARIABLE to the objects of all folders in one half (run or train), and VARIABLE_libraries to the
# libraries that these objects need.
function(linnet_half half variable)
  get_property(folders GLOBAL PROPERTY linnet_${half}_folders)
  get_property(libraries GLOBAL PROPERTY linnet_${half}_libraries)
  list(TRANSFORM folders REPLACE "(.+)" "$<TARGET_OBJECTS:linnet_\\1>")
  list(REMOVE_DUPLICATES libraries)
  list(REMOVE_ITEM libraries nlohmann_json::nlohmann_json)  # header-only: nothing to link
  set(${variable} ${folders} PARENT_SCOPE)
  set(${variable}_libraries ${libraries} PARENT_SCOPE)
endfunction()

function(linnet_package_target target name)
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX EXPORT_NAME ${name})
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/generated>
    $<INSTALL_INTERFACE:include>)
endfunction()

linnet_half(run objects)
add_library(linnet_shared SHARED ${objects})
linnet_package_target(linnet_shared linnet)
list(TRANSFORM objects_libraries REPLACE "(.+)" "$<BUILD_INTERFACE:\\1>" OUTPUT_VARIABLE private)
target_link_libraries(linnet_shared PRIVATE ${private})
set(map ${PROJECT_SOURCE_DIR}/cmake/linnet.map)
target_link_options(linnet_shared PRIVATE
  -Wl,--version-script=${map} -Wl,--exclude-libs,ALL -Wl,--as-needed -Wl,--gc-sections)
set_target_properties(linnet_shared PROPERTIES
  OUTPUT_NAME linnet LINK_DEPENDS ${map}
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
install(TARGETS linnet_shared EXPORT linnet-shared COMPONENT library
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT linnet-shared NAMESPACE linnet:: DESTINATION ${package_dir} COMPONENT library)

add_library(linnet_static STATIC ${objects})
linnet_package_target(linnet_static static)
set_target_properties(linnet_static PROPERTIES OUTPUT_NAME linnet)
target_link_libraries(linnet_static PUBLIC ${objects_libraries})
install(TARGETS linnet_static EXPORT linnet-static COMPONENT static
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT linnet-static NAMESPACE linnet:: DESTINATION ${package_dir} COMPONENT static)

if(LINNET_TRAIN)
  linnet_half(train objects)
  add_library(linnet_training STATIC ${objects})
  linnet_package_target(linnet_training nn)
  set_target_properties(linnet_training PROPERTIES OUTPUT_NAME linnet_nn)
  # Its headers include JSON's.
  target_link_libraries(linnet_training PUBLIC linnet_static ${objects_libraries} nlohmann_json::nlohmann_json)
  install(TARGETS linnet_training EXPORT linnet-nn COMPONENT nn
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT linnet-nn NAMESPACE linnet:: DESTINATION ${package_dir} COMPONENT nn)
  install(DIRECTORY linnet/nn linnet/train DESTINATION include/linnet COMPONENT nn
          FILES_MATCHING PATTERN "*.h" PATTERN "test_*.h" EXCLUDE)
  # Installs the headers of the operations, and the other headers that those of nn and train include.
  foreach(header base/function_ref base/parallel base/progress io/json kernels/activation kernels/adam
          kernels/bfloat16 kernels/causal_linear kernels/linear_attention kernels/scan kernels/strided
          model/feature_map model/gated model/mixer model/names model/spec model/stem model/tensor_info
          ops/adam ops/causal_linear ops/cross_entropy ops/ctc ops/depthwise ops/dropout ops/layer_rows
          ops/linear_attention ops/lsh_attention ops/lstm ops/mixture_of_logistics
          ops/scan ops/softmax_attention tasks/list tasks/masked_batch)
    cmake_path(GET header PARENT_PATH folder)
    install(FILES linnet/${header}.h DESTINATION include/linnet/${folder} COMPONENT nn)
  endforeach()
endif()

install(DIRECTORY include/linnet ${PROJECT_BINARY_DIR}/generated/linnet DESTINATION include
        COMPONENT library FILES_MATCHING PATTERN "*.h")
configure_package_config_file(cmake/linnetConfig.cmake.in linnetConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(linnetConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/linnetConfig.cmake ${PROJECT_BINARY_DIR}/linnetConfigVersion.cmake
        DESTINATION ${package_dir} COMPONENT library)
if(LINNET_TRAIN)
  install(FILES cmake/dnnl.cmake DESTINATION ${package_dir} COMPONENT nn)
endif()
file(RELATIVE_PATH LINNET_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(cmake/linnet.pc.in linnet.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/linnet.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
        COMPONENT library)
