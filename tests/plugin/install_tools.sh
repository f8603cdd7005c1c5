#!/bin/sh
# Installs what `make plugin-test` needs and this Debian lacks. clang is welcome (libFuzzer), but not asked for.
set -eu

lacking=
for pair in cc:gcc protoc-c:protobuf-c-compiler valgrind:valgrind nm:binutils dpkg-deb:dpkg; do
    command -v "${pair%%:*}" > /dev/null || lacking="$lacking ${pair#*:}"
done
[ -e /usr/include/protobuf-c/protobuf-c.h ] || lacking="$lacking libprotobuf-c-dev"
[ -n "$lacking" ] || exit 0
if [ "$(id -u)" != 0 ]; then
    echo "install first (as root): apt-get install$lacking" >&2
    exit 1
fi
echo "installing$lacking" >&2
apt-get -qq update
# shellcheck disable=SC2086 # a list of package names
DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends -y libc6-dev $lacking > /dev/null
