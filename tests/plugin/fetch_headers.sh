#!/bin/sh
# Unpacks (does not install) libslurm-dev of three Debian releases, so that the plugin can be compiled for
# Slurm 22.05, 24.11 and 26.05 on any Debian. Usage: fetch_headers.sh OUT_DIR
#
# Result: OUT_DIR/<release>/usr/include/slurm/*.h. A release that is there already is left alone; one that is
# half there is made again, since its folder only appears by a rename at the end.
set -eu

out=${1:?usage: fetch_headers.sh OUT_DIR}
architecture=$(dpkg --print-architecture)
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

# The mirror this machine is set up with: the first source that carries Debian's own "main" of this release.
codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
    awk -v release="$codename" '$2 == release && $3 == "main" { print $1; exit }')
if [ -z "$mirror" ]; then
    echo "no apt source for $codename main; run apt-get update, or add one" >&2
    exit 1
fi

# An apt of its own: separate lists, cache and dpkg status, same proxies and certificates as the machine's.
apt_of_release() {
    release=$1
    shift
    root=$work/$release
    apt-get -qq \
        -o Dir::Etc::SourceList="$root/sources.list" -o Dir::Etc::SourceParts="$root/none" \
        -o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts="$root/none" \
        -o Dir::State="$root/state" -o Dir::State::status="$root/status" -o Dir::Cache="$root/cache" \
        -o APT::Architecture="$architecture" -o APT::Architectures="$architecture" \
        -o Acquire::Languages=none -o Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled=false \
        -o Acquire::Check-Valid-Until=false -o APT::Update::Post-Invoke= -o APT::Update::Post-Invoke-Success= \
        -o APT::Sandbox::User=root "$@"
}

unpack_release() {
    release=$1
    root=$work/$release
    mkdir -p "$root/none" "$root/state/lists/partial" "$root/cache/archives/partial" "$root/deb"
    : > "$root/status"
    echo "deb [signed-by=$keyring] $mirror $release main" > "$root/sources.list"
    apt_of_release "$release" update
    (cd "$root/deb" && apt_of_release "$release" download libslurm-dev)
    dpkg-deb -x "$root"/deb/libslurm-dev_*.deb "$root/tree"
    rm -rf "${out:?}/$release"
    mv "$root/tree" "$out/$release"
}

mkdir -p "$out"
out=$(cd "$out" && pwd)
work=$(mktemp -d "$out/.work.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
for release in bookworm trixie forky; do
    if [ ! -e "$out/$release/usr/include/slurm/slurm_version.h" ]; then
        echo "unpacking libslurm-dev of $release" >&2
        unpack_release "$release"
    fi
done
