# Installs the programs, the models that ship, man pages and shell completions: component "program".
set(programs linnet linnet-bench)
foreach(program linnet-bench-torch linnet-data linnet-plot linnet-reproduce linnet-serve linnet-speech linnet-train)
  if(TARGET ${program})
    list(APPEND programs ${program})
  endif()
endforeach()
add_custom_target(programs DEPENDS ${programs})
include(GNUInstallDirs)
install(TARGETS ${programs} COMPONENT program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY models/ DESTINATION ${CMAKE_INSTALL_DATADIR}/linnet/models COMPONENT program
        FILES_MATCHING PATTERN "*.safetensors" PATTERN "README.md")

# scripts/manual runs the programs to write their man pages. A cross build cannot run its programs: set LINNET_MANUAL.
set(LINNET_MANUAL "" CACHE PATH "Folder with man pages and completions to install, of another build (its manual/)")
find_package(Python3 QUIET COMPONENTS Interpreter)
if(LINNET_MANUAL)
  install(DIRECTORY ${LINNET_MANUAL}/ DESTINATION ${CMAKE_INSTALL_DATADIR} COMPONENT program)
elseif(Python3_FOUND AND NOT CMAKE_CROSSCOMPILING)
  set(manual ${CMAKE_BINARY_DIR}/manual)
  add_custom_command(OUTPUT ${manual}.stamp
    COMMAND ${CMAKE_COMMAND} -E rm -rf ${manual}
    COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/scripts/manual $<TARGET_FILE_DIR:linnet> ${manual}
    COMMAND ${CMAKE_COMMAND} -E touch ${manual}.stamp
    DEPENDS ${programs} ${PROJECT_SOURCE_DIR}/scripts/manual
    VERBATIM)
  add_custom_target(manual ALL DEPENDS ${manual}.stamp)
  install(DIRECTORY ${manual}/ DESTINATION ${CMAKE_INSTALL_DATADIR} COMPONENT program OPTIONAL)
endif()
