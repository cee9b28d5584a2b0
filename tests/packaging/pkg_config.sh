#!/usr/bin/env bash
# Builds and runs the consumers with nothing but a compiler and what pkg-config says.
#   pkg_config.sh LIBRARY_FOLDER SOURCES BUILD [--static]
set -euo pipefail
libdir=$1 sources=$2 build=$3
static=()
[ -z "${4:-}" ] || static=("$4")
export PKG_CONFIG_PATH=$libdir/pkgconfig
mkdir -p "$build"
read -ra cflags <<<"$(pkg-config "${static[@]}" --cflags echo_comm)"
read -ra libs <<<"$(pkg-config "${static[@]}" --libs echo_comm)"
set -x
"${CC:-cc}" -std=gnu11 -Wall "${cflags[@]}" "$sources/main.c" -o "$build/consumer_c" "${libs[@]}" -pthread
"${CXX:-c++}" -std=c++20 -Wall "${cflags[@]}" "$sources/main.cpp" -o "$build/consumer_cpp" "${libs[@]}" -pthread
LD_LIBRARY_PATH=$libdir "$build/consumer_c"
LD_LIBRARY_PATH=$libdir "$build/consumer_cpp"
