# Toolchain file: builds for Debian on arm64 with Debian's cross compiler (crossbuild-essential-arm64) and the arm64
# versions of the libraries (dpkg --add-architecture arm64). Tests run with qemu-user-static.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(PKG_CONFIG_EXECUTABLE /usr/bin/aarch64-linux-gnu-pkg-config)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static)
set(LINNET_DEBIAN_ARCHITECTURE arm64)
# Ignores /usr/local, whose libraries are for this machine's own architecture and would not link.
set(CMAKE_IGNORE_PREFIX_PATH /usr/local)
set(CMAKE_SYSTEM_LIBRARY_PATH /usr/lib/aarch64-linux-gnu)
set(GTest_DIR /usr/lib/aarch64-linux-gnu/cmake/GTest)
