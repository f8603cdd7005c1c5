#!/bin/bash
# The first process of a run's namespaces: lays the root (an overlay whose writable part is in memory),
# moves into it and becomes inside/init.py. Arguments: the command to run in the cluster.
set -euo pipefail

stage=$TESTBED_CACHE/mnt
mount -t tmpfs -o mode=755 testbed "$stage"
mkdir "$stage"/{upper,work,root,source-upper,source-work}
root=$stage/root

mount -t overlay testbed \
    -o "lowerdir=$TESTBED_LAYERS,upperdir=$stage/upper,workdir=$stage/work" "$root"
mkdir -p "$root"/{opt/hetsched-src,run/testbed-old,var/log/testbed} "$root/etc/hetsched-testbed"

mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -t tmpfs -o mode=755 dev "$root/dev"
mkdir "$root"/dev/{pts,shm}
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
ln -s /proc/self/fd/0 "$root/dev/stdin"
ln -s /proc/self/fd/1 "$root/dev/stdout"
ln -s /proc/self/fd/2 "$root/dev/stderr"
for node in null:3 zero:5 full:7 random:8 urandom:9; do
    mknod -m 666 "$root/dev/${node%:*}" c 1 "${node#*:}"
done
mknod -m 666 "$root/dev/tty" c 5 0

# The working tree: what the run writes stays in memory, but for build/.
mount -t overlay source \
    -o "lowerdir=$TESTBED_SOURCE,upperdir=$stage/source-upper,workdir=$stage/source-work" "$root/opt/hetsched-src"
mount --bind "$TESTBED_SOURCE/build" "$root/opt/hetsched-src/build"
if [ -n "$TESTBED_LOGS" ]; then mount --bind "$TESTBED_LOGS" "$root/var/log/testbed"; fi
cp "$TESTBED_CLUSTER" "$root/etc/hetsched-testbed/cluster.toml"

cd "$root"
pivot_root . run/testbed-old
umount -l /run/testbed-old
rmdir /run/testbed-old

variables=(PATH=/opt/hetsched-venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root USER=root LANG=C.UTF-8
    HETSCHED_TESTBED_RUN=1 "TESTBED_VERB=$TESTBED_VERB" "TESTBED_HETSCHED=$TESTBED_HETSCHED")
while IFS= read -r -d '' entry; do
    case "$entry" in
    HETSCHED_TESTBED=* | HETSCHED_TESTBED_RUN=*) ;;
    TERM=* | COLUMNS=* | LINES=* | CI=* | NO_COLOR=* | FORCE_COLOR=* | PYTEST_ADDOPTS=* | HETSCHED_*) variables+=("$entry") ;;
    esac
done < <(env -0)
exec env -i "${variables[@]}" /usr/bin/python3 -sE /opt/hetsched-src/tests/testbed/inside/init.py "$@"
