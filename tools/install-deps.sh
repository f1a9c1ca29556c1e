#!/bin/sh
# Install what building and testing needs and is missing. Debian and its kin; elsewhere it names what to install.
#   tools/install-deps.sh          what `make`, `make demo` and `make check` need
#   tools/install-deps.sh --ci     and what the sanitizer and fuzzing builds need
set -eu

packages="gcc make cmake ninja-build pkg-config python3 libmicrohttpd-dev libgnutls28-dev libjansson-dev libpcre2-dev libxxhash-dev libcurl4-gnutls-dev libcmocka-dev"
if [ "${1:-}" = "--ci" ]; then
    packages="$packages clang clang-format"
    # libFuzzer and the sanitizers' runtime are a package of their own, named after the clang release
    if command -v apt-cache >/dev/null 2>&1; then
        version=$(apt-cache depends clang 2>/dev/null | sed -n 's/.*Depends: clang-\([0-9][0-9]*\)$/\1/p' | head -n 1)
        packages="$packages libclang-rt-${version:-14}-dev"
    fi
fi

have() {
    case "$1" in
    gcc | make | cmake | clang | clang-format | python3) command -v "$1" >/dev/null 2>&1 ;;
    ninja-build) command -v ninja >/dev/null 2>&1 ;;
    pkg-config) command -v pkg-config >/dev/null 2>&1 ;;
    *) dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'install ok installed' ;;
    esac
}

if ! command -v dpkg-query >/dev/null 2>&1; then
    # not Debian: trust pkg-config and say what is missing
    missing=""
    for p in libmicrohttpd jansson libpcre2-8 libxxhash libcurl cmocka; do
        pkg-config --exists "$p" 2>/dev/null || missing="$missing $p"
    done
    for p in cc cmake ninja python3; do command -v "$p" >/dev/null 2>&1 || missing="$missing $p"; done
    [ -z "$missing" ] && exit 0
    echo "glimmer: please install (with their headers):$missing" >&2
    exit 1
fi

missing=""
for p in $packages; do have "$p" || missing="$missing $p"; done
[ -z "$missing" ] && exit 0

echo "glimmer: installing:$missing"
sudo=""
if [ "$(id -u)" != 0 ]; then
    if command -v sudo >/dev/null 2>&1; then
        sudo=sudo
    else
        echo "glimmer: not root and no sudo; please run: apt-get install$missing" >&2
        exit 1
    fi
fi
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq
# shellcheck disable=SC2086
$sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null
