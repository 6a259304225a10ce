# Finds oneDNN without its own package file: Debian's requires the headers of OpenCL, which nothing
# here needs. If oneDNN is missing, the target DNNL::dnnl does not exist.
if(NOT TARGET DNNL::dnnl)
  find_path(DNNL_INCLUDE_DIR dnnl.hpp)
  find_library(DNNL_LIBRARY dnnl)
  if(DNNL_INCLUDE_DIR AND DNNL_LIBRARY)
    add_library(DNNL::dnnl UNKNOWN IMPORTED)
    set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_LOCATION ${DNNL_LIBRARY}
                          INTERFACE_INCLUDE_DIRECTORIES ${DNNL_INCLUDE_DIR})
  endif()
endif()
