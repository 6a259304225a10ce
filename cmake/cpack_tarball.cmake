# A tarball may be unpacked anywhere, so its paths do not begin with usr/.
if(CPACK_GENERATOR STREQUAL "TGZ")
  set(CPACK_PACKAGING_INSTALL_PREFIX "")
endif()
