# `cpack` makes linnet_VERSION_ARCH.deb and a relocatable tarball with the programs, the library, the models and the
# headers. packaging/build does this in a build folder of its own, without the parts that need libtorch.
set(CPACK_PACKAGE_NAME linnet)
set(CPACK_PACKAGE_VENDOR "the linnet authors")
set(CPACK_PACKAGE_CONTACT "the linnet authors <linnet@users.noreply.github.com>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "linear-attention transformers that run as recurrent networks")
set(CPACK_PACKAGE_DESCRIPTION
"Draws and completes images, continues text, answers the first line of Chinese couplets and transcribes speech with
transformers whose attention is linear: every token takes the same time and memory. Contains trained models, an HTTP
server, and the library for C and C++. Training is not included.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_INSTALL_CMAKE_PROJECTS
  "${CMAKE_BINARY_DIR};linnet;program;/" "${CMAKE_BINARY_DIR};linnet;library;/" "${CMAKE_BINARY_DIR};linnet;license;/"
  "${CMAKE_BINARY_DIR};linnet;service;/")
set(CPACK_GENERATOR DEB TGZ)
set(CPACK_STRIP_FILES ON)
set(CPACK_SYSTEM_NAME Linux-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_PROJECT_CONFIG_FILE ${PROJECT_SOURCE_DIR}/cmake/cpack_tarball.cmake)

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "")
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "g++, pkg-config, cmake")
if(CMAKE_CROSSCOMPILING)
  set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE ${LINNET_DEBIAN_ARCHITECTURE})
endif()
# Without this trigger, programs find the library only after the next run of ldconfig.
file(WRITE ${CMAKE_BINARY_DIR}/debian/triggers "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${CMAKE_BINARY_DIR}/debian/triggers)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

install(FILES LICENSE RENAME copyright DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/linnet COMPONENT license)
foreach(package libboost-dev libcli11-dev libhwy-dev libkissfft-dev nlohmann-json3-dev)  # headers compiled in
  install(FILES /usr/share/doc/${package}/copyright RENAME copyright.${package} OPTIONAL
          DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/linnet COMPONENT license)
endforeach()
install(FILES README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/linnet COMPONENT license)
# Installed, but neither enabled nor started.
install(FILES packaging/linnet-serve.service DESTINATION lib/systemd/system COMPONENT service)
include(CPack)
