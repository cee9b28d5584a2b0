# shellcheck shell=bash
# Shared by the scripts of this folder; sourced, not run. Sets up what they need: system packages, the Python
# environment, C++ builds. Every function looks first and does only what is missing, so a second run is quick.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
CACHE=${ECHO_CACHE:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/echo-comm}
VENV=$ROOT/build/python # this clone's environment: its own build of echo_comm, and a path to the shared packages
JOBS=${ECHO_JOBS:-$(nproc)}
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1

# What a build needs (the last two: the tools), and what tests need besides.
# shellcheck disable=SC2034 # used by quickstart and test
BUILD_PACKAGES=(g++ cmake ninja-build python3 python3-venv libcli11-dev nlohmann-json3-dev libhwy-dev libgloo-dev)
# shellcheck disable=SC2034
TEST_PACKAGES=(libgtest-dev libgmock-dev pkg-config clang clang-format clang-tidy libclang-rt-dev shellcheck
  iproute2 iperf3)

step() { printf '\n==> %s\n' "$*"; }
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# need_packages NAME...: Debian packages; installs the missing ones as root, else says how and exits with 2.
need_packages() {
  command -v dpkg-query >/dev/null || {
    printf 'note: no dpkg here; this system must bring the equivalents of: %s\n' "$*"
    return 0
  }
  local package missing=()
  for package; do
    # shellcheck disable=SC2016 # a format of dpkg-query, not a variable
    dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" -ne 0 ]; then
    printf 'These packages are missing. Install them, then start again:\n\n  sudo apt-get install %s\n\n' "${missing[*]}" >&2
    exit 2
  fi
  step "installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${missing[@]}" </dev/null
}

# find_python: prints a Python that can make environments; 3.11 is the oldest that the pinned packages accept.
# The system's comes first: a python3 earlier on PATH (pyenv and the like) may be any version.
find_python() {
  local python
  for python in /usr/bin/python3 python3 python3.14 python3.13 python3.12 python3.11; do
    if "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$python"
      return 0
    fi
  done
  die "no Python >= 3.11 with the venv module found"
}

# python_packages: folder of the shared environment with everything in requirements/. It lives outside the clone,
# because it has gigabytes and any number of clones can use it; its name follows from what is in it.
python_packages() {
  local key
  key=$({
    cat "$ROOT/requirements/requirements.txt" "$ROOT/requirements/nodeps.txt"
    "$1" -c 'import platform, sys; print(sys.executable, sys.version, platform.machine())'
  } | sha256sum | cut -c1-16)
  printf '%s/python-%s\n' "$CACHE" "$key"
}

# The recorded environment of this clone, for those who only use it.
shared_packages() { cat "$VENV/shared-packages" 2>/dev/null; }

# make_python_packages PYTHON FOLDER: fills FOLDER unless it is complete. Several clones may try at once: one works,
# the others wait. The mark of completeness is written last; a folder without it is a broken attempt and made anew.
make_python_packages() {
  local python=$1 folder=$2
  [ ! -e "$folder/.complete" ] || return 0
  mkdir -p "$CACHE"
  (
    flock -n 9 || {
      step "waiting for another clone that is installing the Python packages"
      flock 9
    }
    [ ! -e "$folder/.complete" ] || exit 0
    step "installing the Python packages into $folder (once; PyTorch is large)"
    rm -rf "$folder"
    "$python" -m venv "$folder"
    "$folder/bin/pip" install --quiet --progress-bar off -r "$ROOT/requirements/requirements.txt"
    "$folder/bin/pip" install --quiet --progress-bar off --no-deps -r "$ROOT/requirements/nodeps.txt"
    touch "$folder/.complete"
  ) 9>"$folder.lock"
}

# make_clone_environment PYTHON PACKAGES: this clone's environment, which sees PACKAGES behind its own site-packages.
make_clone_environment() {
  local python=$1 packages=$2 site script
  if [ "$(shared_packages)" = "$packages" ] && [ "$("$VENV/bin/python" -c 'import sys; print(sys.prefix)')" = "$VENV" ]; then
    return 0
  fi
  step "making this clone's Python environment"
  rm -rf "$VENV"
  "$python" -m venv --without-pip "$VENV"
  site=$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  "$packages/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/shared-packages.pth"
  # torchrun, pytest and so on, but started by this clone's Python, so that they see its echo_comm.
  for script in "$packages"/bin/*; do
    case ${script##*/} in
      pip* | python* | activate* | Activate*) ;;
      *)
        if head -c 200 "$script" | tr -d '\0' | grep -q "$packages/bin/python"; then
          sed "1,3s|$packages/bin/python[0-9.]*|$VENV/bin/python|" "$script" >"$VENV/bin/${script##*/}"
          chmod +x "$VENV/bin/${script##*/}"
        fi
        ;;
    esac
  done
  printf '%s\n' "$packages" >"$VENV/shared-packages"
}

# install_package PACKAGES: builds echo_comm of this clone and installs it into its environment, if anything changed.
install_package() {
  local stamp=$VENV/installed now
  now=$(cd "$ROOT" && find CMakeLists.txt pyproject.toml README.md LICENSE cmake src include bindings python \
    -type f ! -name '*.pyc' -print0 2>/dev/null | LC_ALL=C sort -z | xargs -0 sha256sum)
  [ "$(cat "$stamp" 2>/dev/null)" != "$now" ] || return 0
  step "building and installing the Python package echo-comm"
  fresh_if_moved "$ROOT/build/wheel"
  rm -f "$stamp"
  # The packages that the build needs are in the environment already (no isolation, nothing downloaded).
  (cd "$ROOT" && CMAKE_BUILD_PARALLEL_LEVEL=$JOBS "$1/bin/python" -m pip --python "$VENV/bin/python" install --quiet \
    --no-deps --no-build-isolation --no-index --config-settings=build-dir=build/wheel .)
  printf '%s\n' "$now" >"$stamp"
}

# python_environment: all of the above.
python_environment() {
  local python packages
  python=$(find_python)
  packages=$(python_packages "$python")
  make_python_packages "$python" "$packages"
  make_clone_environment "$python" "$packages"
  install_package "$packages"
}

# fresh_if_moved FOLDER: a CMake build folder knows its source folder by absolute path; a copied clone starts anew.
fresh_if_moved() {
  [ -e "$1/CMakeCache.txt" ] || return 0
  grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$ROOT" "$1/CMakeCache.txt" || rm -rf "$1"
}

# cpp_build PRESET [CMAKE_ARGUMENT...]: configures and builds a preset.
cpp_build() {
  local preset=$1
  shift
  fresh_if_moved "$ROOT/build/$preset"
  (cd "$ROOT" && cmake --preset "$preset" "$@" >/dev/null && cmake --build --preset "$preset" --parallel "$JOBS")
}

# cxx_files: all C and C++ files of the project, relative to ROOT.
cxx_files() {
  (cd "$ROOT" && find include src bindings testing tests tools examples -type f \
    \( -name '*.c' -o -name '*.h' -o -name '*.cpp' -o -name '*.hpp' -o -name '*.cu' -o -name '*.cuh' \) 2>/dev/null | LC_ALL=C sort)
}
